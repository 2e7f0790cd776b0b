"""``make demo``: a job that loses ranks, then a node, shown live and compared with an undisturbed run."""
