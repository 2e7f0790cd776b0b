"""Skips everything, with the reason, where there is no GPU that these tests can use."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))

import torch
from cuda_jobs import run_cuda

SHARED_GPU = (2, 30, 0)  # from here on NCCL lets several ranks share one GPU


def why_not():
    if not torch.cuda.is_available():
        return "torch finds no CUDA device"
    if not torch.distributed.is_nccl_available():
        return "this torch has no NCCL"
    if torch.cuda.device_count() < 2 and torch.cuda.nccl.version() < SHARED_GPU:
        return f"one GPU, and NCCL {torch.cuda.nccl.version()} does not let two ranks share it (2.30 does)"
    return ""


def pytest_collection_modifyitems(items):
    reason = why_not()
    for item in items:
        if reason and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def shared_gpu(monkeypatch):
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    monkeypatch.setenv("NCCL_DEBUG", os.environ.get("NCCL_DEBUG", "WARN"))


def pytest_report_header():
    if not torch.cuda.is_available():
        return "gpu: none"
    names = {torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())}
    versions = f"torch {torch.__version__}, NCCL {torch.cuda.nccl.version()}"
    return f"gpu: {torch.cuda.device_count()} x {', '.join(names)}, {versions}"


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """The same job without faults, by (model, world); each is run once, by the first test that asks."""
    known = {}

    def get(model="plain", world=2):
        if (model, world) not in known:
            known[model, world] = run_cuda(tmp_path_factory.mktemp(f"undisturbed-{model}"), model=model, world=world)
            assert known[model, world].exit_code == 0, known[model, world].explain()
        return known[model, world]

    return get
