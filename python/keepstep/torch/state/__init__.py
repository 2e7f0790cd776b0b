"""Protected state: what ``run.protect`` registered, what forward changes, and both as tensors and JSON."""
