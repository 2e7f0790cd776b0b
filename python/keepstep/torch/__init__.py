"""The only part of keepstep that imports torch: backend, protected state, the training loop's API."""

from __future__ import annotations

from keepstep.torch import rendezvous
from keepstep.torch.backend import register_backend
from keepstep.torch.gradient_norm import clip_grad_norm_, grad_norm
from keepstep.torch.replicate import Replicate
from keepstep.torch.seeds import seed_micro_batch

__all__ = ["Replicate", "clip_grad_norm_", "grad_norm", "seed_micro_batch"]

register_backend()
rendezvous.install()
