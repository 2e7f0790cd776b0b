"""Trainers of other libraries, made recoverable. Each module imports its library, and is imported by users only."""
