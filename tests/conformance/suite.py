"""PyTorch's own test suite of a c10d backend, run with backend "keepstep".

The wheel carries the class that PyTorch's Gloo and NCCL tests derive from
(``torch.testing._internal.distributed.distributed_test``). It asks for the backend's name in many conditions, and skips
what it does not know. So that as much is executed as with Gloo, our name compares equal to "gloo" in those conditions,
and is registered in Gloo's feature sets; ``get_backend()`` still says "keepstep". The tests of all_to_all between CPU
tensors, which Gloo cannot do and only MPI's backend is asked for, run too. Nothing else of the suite is changed.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

MODULE = "torch.testing._internal.distributed.distributed_test"
_LINE = 'BACKEND = os.environ["BACKEND"]'
_ONLY_MPI = (
    'BACKEND != "mpi", "Only MPI supports CPU all_to_all_single"',
    'BACKEND != "mpi", "Only MPI supports all_to_all"',
)


class LikeGloo(str):
    """A backend's name that the suite's conditions treat as Gloo's."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) or other == "gloo"

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash("gloo")  # found in sets that hold "gloo"


def load(backend: str) -> ModuleType:
    """The suite's module, for `backend`."""
    os.environ["BACKEND"] = backend
    if backend == "gloo":
        return importlib.import_module(MODULE)
    from torch.testing._internal import common_distributed

    cases = common_distributed.DistTestCases
    cases.backend_feature["plugin"].add(backend)
    for backends in [*cases.backend_feature.values(), *cases.skip_collective.values()]:
        if "gloo" in backends:
            backends.add(backend)
    spec = importlib.util.find_spec(MODULE)
    assert isinstance(spec, ModuleSpec) and spec.origin is not None
    with open(spec.origin) as file:
        source = file.read()
    assert source.count(_LINE) == 1, "this version of torch has another test suite"
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    module.__dict__["_keepstep_name"] = LikeGloo
    named = source.replace(_LINE, 'BACKEND = _keepstep_name(os.environ["BACKEND"])')
    for condition in _ONLY_MPI:
        assert condition in named, "this version of torch has another test suite"
        named = named.replace(condition, condition.replace('BACKEND != "mpi"', "False"))
    exec(compile(named, spec.origin, "exec", dont_inherit=True), module.__dict__)
    return module
