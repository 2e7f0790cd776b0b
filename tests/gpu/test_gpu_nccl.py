"""NCCL starts through the rootless Store, in scripts that know nothing of it."""

from pathlib import Path

import pytest

from harness import finish, start

JOB = Path(__file__).parent / "jobs" / "unchanged.py"


@pytest.mark.parametrize("backend", ["nccl", "cpu:keepstep,cuda:nccl"])
@pytest.mark.parametrize("ranks_per_root", ["", "1"], ids=["one root", "a root for each rank"])
def test_nccl_starts_through_the_rootless_store(tmp_path, monkeypatch, backend, ranks_per_root):
    if ranks_per_root:
        monkeypatch.setenv("TORCH_NCCL_RANKS_PER_ROOT", ranks_per_root)
    process, command = start(tmp_path, JOB, tmp_path, backend)
    job = finish(tmp_path, process, command)
    assert job.exit_code == 0, job.explain()
    assert sorted(note["rank"] for note in job.notes) == [0, 1], job.explain()
    for note in job.notes:
        assert note["sums"] == [[3.0], [3.0]], job.explain()
        assert note["store"] == "GenerationStore", job.explain()
