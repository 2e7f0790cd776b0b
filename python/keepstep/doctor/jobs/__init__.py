"""What the doctor starts: a look at torch in the jobs' interpreter, and the ranks of its own small jobs."""
