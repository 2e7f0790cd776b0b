"""What the doctor starts: a probe of torch in the jobs' interpreter, and the ranks of its own small jobs."""
