"""Detects wrong state: digests that ranks compare, the checking mode, mistakes in what is protected. Also makes and
records such state for tests."""
