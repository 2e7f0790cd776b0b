"""Checkpoints without torch: where they lie, what is in them, and the command ``keepstep ckpt``."""
