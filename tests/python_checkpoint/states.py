"""State dicts for tests, saved and loaded in this process."""

import warnings

import torch
import torch.distributed.checkpoint as dcp

from keepstep.checkpoint.owners import let_go
from keepstep.torch.checkpoint import LoadPlanner, Reader, Writer

warnings.filterwarnings("ignore", message="torch.distributed is disabled")


def state(seed):
    """Tensors of many kinds, and what is none."""
    random = torch.Generator().manual_seed(seed)
    return {
        "model": {
            "weight": torch.randn(40, 30, generator=random),
            "turned": torch.randn(30, 50, generator=random).t(),
            "half": torch.randn(7, generator=random).bfloat16(),
            "eighth": torch.randn(5, generator=random).to(torch.float8_e4m3fn),
            "slice": torch.randn(8, 8, generator=random)[2:5, 1:7:2],
            "scalar": torch.tensor(seed),
            "empty": torch.empty(0, 3),
            "bits": torch.tensor([True, False, bool(seed % 2)]),
            "complex": torch.randn(3, dtype=torch.complex64, generator=random).conj(),
        },
        "optimizer": {
            "param_groups": [{"lr": 0.1 * seed, "betas": (0.9, 0.99), "name": f"group {seed}"}],
            "state": {0: {"step": torch.tensor(float(seed)), "exp_avg": torch.randn(1200, 1000, generator=random)}},
        },
        "step": seed,
    }


def zeros(like):
    """The same, with nothing in it."""
    if isinstance(like, dict):
        return {key: zeros(value) for key, value in like.items()}
    if isinstance(like, list):
        return [zeros(value) for value in like]
    if isinstance(like, torch.Tensor):
        return torch.zeros(like.shape, dtype=like.dtype)
    return None


def assert_same(a, b, path=""):
    if isinstance(a, dict):
        assert a.keys() == b.keys(), path
        for key in a:
            assert_same(a[key], b[key], f"{path}.{key}")
    elif isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and a.shape == b.shape, path
        assert (
            a.resolve_conj()
            .contiguous()
            .view(-1)
            .view(torch.uint8)
            .equal(b.resolve_conj().contiguous().view(-1).view(torch.uint8))
        ), path
    else:
        assert a == b, path


def save(place, step, seed=None, **options):
    """A save that a process would do, and its end."""
    dcp.save(state(step if seed is None else seed), storage_writer=Writer(place, step, **options))
    let_go()


def load(place, step=None, **options):
    loaded = zeros(state(0))
    reader = Reader(place, step, **options)
    dcp.load(loaded, storage_reader=reader, planner=LoadPlanner())
    return loaded, reader
