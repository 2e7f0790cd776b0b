"""Random numbers that need no saving: seeded at the start of each step from (seed, step, rank).

In reproducible mode at the start of each micro-batch, from (seed, step, micro-batch), so that they do not depend on
which rank computes it.
"""

from __future__ import annotations

import importlib.machinery
import random
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any

import torch

from keepstep._engine import mix_seed


class _WhenImported(MetaPathFinder):
    """Seeds ``numpy.random`` when somebody imports it: numpy 2 leaves that to its first use.

    Until then there is nothing to seed, and seeding in every step would import it.
    """

    seed = 0  # the newest

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "numpy.random":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_seed(module: ModuleType) -> None:
            load(module)
            module.seed(self.seed & 0xFFFFFFFF)

        spec.loader.exec_module = load_and_seed  # type: ignore[method-assign]
        return spec


_numpy = _WhenImported()

# ``random.seed``, without its layer in Python: called once in each step, that takes longer than the seeding.
_python = random.seed.__self__  # type: ignore[attr-defined]
_seed_python = super(random.Random, _python).seed


def seed_all(value: int) -> None:
    """Seeds torch (all devices in use), random, and numpy: at once if numpy.random is imported, else when it is."""
    torch.default_generator.manual_seed(value & ((1 << 63) - 1))
    _seed_cuda(value & ((1 << 63) - 1))
    _seed_python(value)
    _python.gauss_next = None
    _numpy.seed = value
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed(value & 0xFFFFFFFF)
    elif _numpy not in sys.meta_path:
        sys.meta_path.insert(0, _numpy)


def generator_states() -> dict[str, Any]:
    """Of the generators of this process on the CPU: plain values and tensors, for `set_generator_states`."""
    version, words, gauss = random.getstate()
    states: dict[str, Any] = {"torch": torch.get_rng_state(), "python": [version, torch.tensor(words), gauss]}
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        name, keys, *rest = numpy_random.get_state()
        states["numpy"] = [name, torch.tensor(keys.astype("int64")), *rest]
    return states


def set_generator_states(states: dict[str, Any]) -> None:
    """What is drawn from here on is what was drawn after `generator_states`."""
    torch.set_rng_state(states["torch"])
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    if "numpy" in states:
        import numpy.random

        name, keys, *rest = states["numpy"]
        numpy.random.set_state((name, keys.numpy().astype("uint32"), *rest))


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
    seed_all(mix_seed(seed, step, micro_batch))
