"""What a process does around a fault: joining a generation, what a commit left, and a spare's checks and rehearsal."""
