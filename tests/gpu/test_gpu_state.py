"""State on a GPU is saved, read again, kept by the agents, and given to the ranks of another world."""

import os
from pathlib import Path

import pytest
import torch

from harness import finish, json_lines, start
from keepstep import _engine
from running_jobs import Running, command

SAVED = Path(__file__).parent / "jobs" / "saved.py"
UNTIL = 12


def run(folder, *extra, until=UNTIL, inject=(), spares=0):
    injected = [part for text in inject for part in ("--inject", text)]
    process, words = start(folder, SAVED, "--out", folder, "--until", until, *extra, options=injected, spares=spares)
    job = finish(folder, process, words)
    assert job.exit_code == 0, job.explain()
    return job


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run(tmp_path_factory.mktemp("whole"))


def losses(job):
    return {line["step"]: line["loss"] for line in job.metrics}


def finals(job):
    return {rank: note["final"] for rank, note in job.finals().items()}


def test_a_job_goes_on_from_its_checkpoint_with_the_same_bits(tmp_path, whole):
    first = run(tmp_path / "first", "--saves", tmp_path / "saves", until=7)
    rest = run(tmp_path / "rest", "--saves", tmp_path / "saves")
    assert list(losses(rest)) == list(range(8, UNTIL + 1)), rest.explain()
    assert losses(first) | losses(rest) == losses(whole), rest.explain()
    assert finals(rest) == finals(whole), rest.explain()


def test_the_agents_keep_the_state_when_all_ranks_die_at_once(tmp_path, whole):
    inject = ["kill:rank=0,step=5,phase=between", "kill:rank=1,step=5,phase=between"]
    job = run(tmp_path / "job", "--saves", tmp_path / "saves", "--memory", inject=inject, spares=1)
    assert losses(job) == losses(whole), job.explain()
    assert finals(job) == finals(whole), job.explain()


def test_a_job_shrinks_and_grows_while_it_trains(tmp_path):
    parts = ["--ranks-per-replica", "1", "--min-replicas", "1", "--scaling-timeout", "86400"]
    job = Running(tmp_path, f"gpu-scaled-{os.getpid()}", world=3, options=parts, extra=["--device", "cuda"])
    try:
        job.wait_for_steps(2)
        for size in (1, 3):
            assert command("scale", job.name, "--to", size).returncode == 0
            job.wait_for(lambda size=size: worlds(job)[-2:] == [size, size], f"step of {size} ranks")
    finally:
        ended = job.stop()
    steps = [line["step"] for line in ended.metrics]
    assert steps == list(range(1, len(steps) + 1)), ended.explain()


def worlds(job):
    return [line["world"] for line in json_lines(job.folder / "journal" / "metrics.jsonl")]


def test_the_driver_finds_these_gpus_fit():
    assert torch.zeros(1, device="cuda").item() == 0
    assert _engine.unfit_gpus() == []


def test_doctor_finds_that_jobs_can_run_here():
    done = command("doctor")
    assert done.returncode == 0, done
    assert "all well by NVML" in done.stdout, done
