"""The only part of keepstep that imports torch: backend, protected state, the training loop's API."""

from __future__ import annotations

import torch

from keepstep.torch import versions

versions.check(torch.__version__)

from keepstep.torch.data_parallel.replicate import Replicate  # noqa: E402
from keepstep.torch.distributed import rendezvous  # noqa: E402
from keepstep.torch.distributed.backend import register_backend  # noqa: E402
from keepstep.torch.reduction.gradient_norm import clip_grad_norm_, grad_norm  # noqa: E402
from keepstep.torch.seeds import seed_micro_batch  # noqa: E402
from keepstep.torch.step.learning_rate import scale_lr  # noqa: E402

__all__ = ["Replicate", "clip_grad_norm_", "grad_norm", "install", "scale_lr", "seed_micro_batch"]


def install() -> None:
    """Makes backend, Store and rendezvous known to torch; once per process. torch calls it through the package's entry
    points, so ``init_process_group("keepstep")`` needs no import of keepstep."""
    register_backend()
    rendezvous.install()


install()
