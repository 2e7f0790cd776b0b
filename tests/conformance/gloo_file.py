"""PyTorch's test file of Gloo, run with backend "keepstep": ``test_c10d_gloo.py`` of a checkout of PyTorch.

It is not in the wheel and not in this repository; FOLDER is ``test/distributed`` of PyTorch's sources. Its tests make
Gloo's process group themselves. Here they get ours instead, and ``init_process_group("gloo")`` means "keepstep";
nothing else of the file is changed.
"""

from __future__ import annotations

import importlib
import sys
import unittest
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal import common_distributed

GLOO = dist.ProcessGroupGloo


class _Ours:
    """Our backend, called as the tests call Gloo's: through the methods of the C++ base class, with their overloads."""

    def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
        from keepstep.torch.distributed.backend import _create

        wanted = dist.distributed_c10d._DistributedBackendOptions()
        wanted.store, wanted.group_rank, wanted.group_size = store, rank, size
        wanted.group_id, wanted.timeout = "0", options._timeout
        self._backend = _create(wanted)

    def __getattr__(self, name: str) -> Any:
        from keepstep.torch.distributed.work import _RETURN_WORK, _made

        if name not in _RETURN_WORK:
            return getattr(self._backend, name)
        method = getattr(torch._C._distributed_c10d.Backend, name)

        def call(*args: Any, **options: Any) -> Any:
            _made.work = None
            holder = method(self._backend, *args, **options)
            return _made.work or holder  # as ProcessGroup's methods do (give_back_works)

        return call


class _InPlaceOfGloo:
    _Options = GLOO._Options
    create_device = staticmethod(GLOO.create_device)

    def __new__(cls, store: Any, rank: int, size: int, options: Any) -> Any:
        return _Ours(store, rank, size, options)


def load(folder: Path, backend: str) -> Any:
    """The file's module; its ranks are forked, because they would import torch anew otherwise."""
    fork = torch.multiprocessing.get_context("fork").Process
    common_distributed.MultiProcessTestCase._spawn_processes = lambda self: self._start_processes(fork)
    if backend == "keepstep":
        make = dist.init_process_group

        def init_process_group(backend: str | None = None, *args: Any, **options: Any) -> Any:
            return make("keepstep" if backend == "gloo" else backend, *args, **options)

        for module in (dist, dist.distributed_c10d):
            module.init_process_group = init_process_group
        dist.ProcessGroupGloo = _InPlaceOfGloo
        from keepstep.torch.distributed.backend import KeepstepBackend

        KeepstepBackend.create_device = staticmethod(GLOO.create_device)  # the tests make one, and give it nobody
    sys.path.insert(0, str(folder))
    return importlib.import_module("test_c10d_gloo")


def cases(module: Any) -> dict[str, type[unittest.TestCase]]:
    """CLASS.test of all its tests, and the class of each."""
    found = {}
    for suite in unittest.defaultTestLoader.loadTestsFromModule(module):
        for test in suite:
            assert isinstance(test, unittest.TestCase)
            found[f"{type(test).__name__}.{test._testMethodName}"] = type(test)
    return found
