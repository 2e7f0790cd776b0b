"""State of which each rank holds a part: its copies and layout, a new division of it, what FSDP2 and pipelines keep."""
