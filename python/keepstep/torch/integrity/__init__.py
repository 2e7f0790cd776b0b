"""What shows that state is wrong, or will be: digests that ranks compare, the checking mode, mistakes in what is
protected; and what makes or writes down such state for tests."""
