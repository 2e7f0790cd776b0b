"""Batches of tokens, and building corpora from text: `data` and `data-build`."""
