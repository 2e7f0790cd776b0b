"""State of which each rank holds a part: its copies, layout and resharding, and what FSDP2 and pipelines keep."""
