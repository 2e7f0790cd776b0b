"""What ranks publish with ``run.publish``, as processes that are no ranks see it."""
