"""A step of training: which samples a rank takes, batch sizes and learning rates, vetoes, and leaving it early."""
