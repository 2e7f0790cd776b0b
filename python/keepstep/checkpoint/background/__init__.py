"""The background writer, which writes the checkpoints of a node's ranks. The agent runs
``python -m keepstep.checkpoint.background``.

A rank hands over the recipe of its file and the memory that holds its tensors; rank 0 also hands over what completes
the checkpoint. From then on the save needs no rank. Free of torch.
"""
