"""Protected state: what ``run.setup`` registered, what forward changes, and both as tensors and JSON."""
