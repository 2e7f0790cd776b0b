"""The only part of keepstep that imports torch: backend, protected state, the training loop's API."""

from __future__ import annotations

from keepstep.torch import rendezvous
from keepstep.torch.backend import register_backend

register_backend()
rendezvous.install()
