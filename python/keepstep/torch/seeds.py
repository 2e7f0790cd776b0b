"""Random numbers that need no saving: seeded at the start of each step from (seed, step, rank).

In reproducible mode at the start of each micro-batch, from (seed, step, micro-batch), so that they do not depend on
which rank computes it.
"""

from __future__ import annotations

import random
import sys

import torch

_MASK = (1 << 64) - 1


def mix(*parts: int) -> int:
    """64 bits that depend on all `parts` (SplitMix64's finalizer, chained)."""
    value = 0
    for part in parts:
        value = (value + part + 0x9E3779B97F4A7C15) & _MASK
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
        value ^= value >> 31
    return value


def seed_all(value: int) -> None:
    """Seeds torch (all devices in use), random, and numpy where it is imported."""
    torch.default_generator.manual_seed(value & ((1 << 63) - 1))
    _seed_cuda(value & ((1 << 63) - 1))
    random.seed(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(value & 0xFFFFFFFF)


_newest = 0
_asked = False


def _seed_cuda(value: int) -> None:
    """All CUDA devices. Where CUDA is not in use yet: once it is, with the newest seed then (a model that is built on
    the GPU is often the first to use it, and must be the same in every process)."""
    global _newest, _asked
    _newest = value
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(value)
    elif not _asked:
        _asked = True
        torch.cuda._lazy_call(lambda: torch.cuda.manual_seed_all(_newest), seed_all=True)  # type: ignore[no-untyped-call]


def seed_micro_batch(seed: int, step: int, micro_batch: int) -> None:
    """Seeds for micro-batch `micro_batch` (from 0, counted over all ranks) of step `step`."""
    seed_all(mix(seed, step, micro_batch))
