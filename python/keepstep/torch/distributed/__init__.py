"""What torch.distributed gets from keepstep: the backend, Works, Store and rendezvous, and NCCL's communicators."""
