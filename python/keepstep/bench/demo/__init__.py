"""``make demo``: a job that loses ranks, then a node, shown while it runs and compared with an undisturbed run."""
