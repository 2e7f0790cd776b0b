"""The process that writes the checkpoints of a node's ranks. The agent runs
``python -m keepstep.checkpoint.background``.

A rank hands over what its file is made of, and the memory where its tensors lie; rank 0 also what completes the
checkpoint. From then on the save needs no rank. Without torch.
"""
