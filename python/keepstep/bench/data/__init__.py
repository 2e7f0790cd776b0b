"""Batches of tokens, and text made into corpora: `data` and `data-build`."""
