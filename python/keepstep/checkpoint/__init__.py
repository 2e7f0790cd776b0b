"""Checkpoints without torch: where they are stored, what they contain, and the command ``keepstep ckpt``."""
