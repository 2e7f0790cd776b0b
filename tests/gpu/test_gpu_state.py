"""State on a GPU is saved, read again, kept by the agents, and given to the ranks of another world."""

import dataclasses
import os

import torch
from cuda_jobs import CUDA, UNTIL, run_cuda

from harness import assert_same_history, json_lines
from keepstep import _engine
from running_jobs import Running, command


def test_a_job_goes_on_from_its_checkpoint_with_the_same_bits(tmp_path, undisturbed):
    saves = ["--saves", tmp_path / "saves"]
    first = run_cuda(tmp_path / "first", until=7, extra=saves)
    rest = run_cuda(tmp_path / "rest", extra=saves)
    assert [line["step"] for line in rest.metrics] == list(range(8, UNTIL + 1)), rest.explain()
    both = dataclasses.replace(rest, metrics=[*first.metrics, *rest.metrics])
    assert_same_history(both, undisturbed(), UNTIL)


def test_the_agents_keep_the_state_when_all_ranks_die_at_once(tmp_path, undisturbed):
    inject = ["kill:rank=0,step=5,phase=between", "kill:rank=1,step=5,phase=between"]
    job = run_cuda(tmp_path / "job", inject=inject, spares=1, extra=["--saves", tmp_path / "saves"])
    assert_same_history(job, undisturbed(), UNTIL)


def test_a_job_shrinks_and_grows_while_it_trains(tmp_path):
    parts = ["--ranks-per-replica", "1", "--min-replicas", "1", "--scaling-timeout", "86400"]
    job = Running(tmp_path, f"gpu-scaled-{os.getpid()}", world=3, options=parts, extra=CUDA)
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
