"""Sums whose bits do not depend on the number of ranks, and what is made of them: gradient norms, the step's loss."""
