"""Threads beside training, each with a process group of its own: no order between groups, and all leave in a fault."""

import hashlib

import pytest
import torch
import torch.distributed.checkpoint as dcp

from harness import JOBS, assert_survivors_kept_their_process, finish, start
from several_nodes import finish_nodes, start_nodes

UNTIL = 12


def run_job(folder, script, *arguments, inject=(), world=3):
    injected = [part for text in inject for part in ("--inject", text)]
    process, command = start(folder, JOBS / script, folder, UNTIL, *arguments, world=world, options=injected)
    return finish(folder, process, command)


def assert_same_end(job, reference):
    why = job.explain()
    assert job.exit_code == 0, why
    assert [line["step"] for line in job.metrics] == list(range(1, UNTIL + 1)), why
    for mine, theirs in zip(job.metrics, reference.metrics, strict=True):
        assert mine["bits"] == theirs["bits"], f"step {mine['step']}: the loss differs{why}"
    assert finals(job) == finals(reference), why


def finals(job):
    return {rank: note["final"] for rank, note in job.finals().items()}


@pytest.fixture(scope="module")
def undisturbed_threads(tmp_path_factory):
    job = run_job(tmp_path_factory.mktemp("undisturbed"), "threaded_groups.py")
    assert job.exit_code == 0, job.explain()
    assert not [note for note in job.notes if "thread_left" in note], job.explain()
    return job


def left(job):
    """How threads of survivors left their collectives."""
    return {note["thread_left"] for note in job.notes if "thread_left" in note}


def test_threads_leave_when_a_rank_is_killed_and_all_begin_again(tmp_path, undisturbed_threads):
    inject = ["kill:rank=1,step=4,phase=backward", "kill:rank=0,step=8,phase=forward"]
    job = run_job(tmp_path, "threaded_groups.py", inject=inject)
    assert_same_end(job, undisturbed_threads)
    assert_survivors_kept_their_process(job, [0, 1], 3)
    assert left(job) <= {"Interrupted", "RuntimeError"}, job.explain()


@pytest.mark.parametrize(
    "inject",
    [pytest.param((), marks=pytest.mark.long), ("kill:rank=1,step=5,phase=backward",)],
    ids=["undisturbed", "killed"],
)
def test_threads_with_groups_across_nodes_do_not_wait_for_each_other(tmp_path, undisturbed_threads, inject):
    injected = [part for text in inject for part in ("--inject", text)]
    nodes = start_nodes(tmp_path, JOBS / "threaded_groups.py", tmp_path, UNTIL, nodes=3, world=1, options=injected)
    job = finish_nodes(nodes)
    assert_same_end(job, undisturbed_threads)
    assert left(job) <= ({"Interrupted", "RuntimeError"} if inject else set()), job.explain()


def test_a_future_that_is_kept_over_entries_ends_the_job_with_what_to_write(tmp_path):
    process, command = start(
        tmp_path, JOBS / "kept_future.py", tmp_path, world=2, options=["--inject", "kill:rank=1,step=4,phase=forward"]
    )
    job = finish(tmp_path, process, command, limit_s=60)
    assert job.exit_code != 0, job.explain()
    assert "take results in a `finally`" in job.output, job.explain()


@pytest.mark.long
def test_dcp_async_save_beside_steps_survives_kills(tmp_path, tmp_path_factory):
    reference = run_job(tmp_path_factory.mktemp("saving"), "async_saving.py", 2, world=2)
    inject = ["kill:rank=1,step=5,phase=forward", "kill:rank=0,step=9,phase=backward"]
    job = run_job(tmp_path, "async_saving.py", 2, inject=inject, world=2)
    assert_same_end(job, reference)
    assert_survivors_kept_their_process(job, [0, 1], 2)
    digests = {note["saved"]: note["digest"] for note in reference.notes if "saved" in note}
    assert all(digests[note["saved"]] == note["digest"] for note in job.notes if "saved" in note), job.explain()
    # The last one is whole, and what the others hold is what they said: a kill may have cost one that was under way.
    newest = tmp_path / "saved" / f"step-{UNTIL}"
    loaded = {"model": {name: torch.empty(shape) for name, shape in SHAPES.items()}}
    dcp.load(loaded, checkpoint_id=str(newest), no_dist=True)
    assert digest(loaded["model"]) == digests[UNTIL], job.explain()


SHAPES = {"0.weight": (256, 16), "0.bias": (256,), "2.weight": (4, 256), "2.bias": (4,)}


def digest(model):
    total = hashlib.sha256()
    for _, tensor in sorted(model.items()):
        total.update(tensor.contiguous().numpy().tobytes())
    return total.hexdigest()
