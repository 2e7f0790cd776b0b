"""Tensors as the engine sees them: pieces of memory, on the CPU or a GPU, and the local parts of DTensors."""
