"""Replicas of a model: `Replicate` and its gradients in buckets, DDP's wrappers, what reproducible mode refuses."""
