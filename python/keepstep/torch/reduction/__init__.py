"""Sums whose bits do not depend on the number of ranks, and their uses: gradient norms, the step's loss."""
