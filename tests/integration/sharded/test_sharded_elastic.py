"""Sharded state in elastic jobs: the number of ranks changes, processes stay, each gets its new part of the state."""

import pytest

from elastic_jobs import SHARDED_JOB, samples_of, sharded
from fsdp2 import needs_fsdp2
from harness import JOBS, finish, start
from several_nodes import assert_nothing_is_left

pytestmark = needs_fsdp2


def assert_every_sample_once(done):
    steps = samples_of(done)
    seen = [sample for step in steps for sample in step]
    assert all(len(step) == 48 for step in steps)
    assert len(seen) == len(set(seen))


def assert_the_state_came_through(done):
    """Whatever the number of ranks: before a step it is, to the bit, what it was after the step before."""
    after = {note["after"]: note["digest"] for note in done.notes if "after" in note}
    before = {note["before"]: note["digest"] for note in done.notes if "before" in note}
    resized = [line["version"] for line in done.events("generation_prepared")]
    compared = [version for version in resized if version in after and version in before]
    assert len(compared) >= 2, (resized, sorted(after), sorted(before))
    for version in before.keys() & after.keys():
        assert before[version] == after[version], f"version {version} of those with a change after {resized}"


def assert_as_with_a_fixed_size(done, folder, *options, world=2):
    """Sums over other numbers of ranks round otherwise, and differ by no more than that."""
    process, command = start(
        folder, JOBS / "sharded.py", "--out", folder, "--until", len(done.metrics), *SHARDED_JOB, *options, world=world
    )
    fixed = finish(folder, process, command, limit_s=300)
    assert fixed.exit_code == 0, fixed.explain()
    for mine, theirs in zip(done.metrics, fixed.metrics, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-3), f"step {mine['step']}"


def assert_rank_0_is_one_process(done):
    (pid,) = {note["pid"] for note in done.notes if "entry" in note and note["rank"] == 0}
    assert pid


def assert_nothing_was_lost(done, folder, *options):
    assert_every_sample_once(done)
    assert_the_state_came_through(done)
    assert_rank_0_is_one_process(done)
    assert_as_with_a_fixed_size(done, folder / "fixed", *options)
    assert_nothing_is_left(str(folder))


@pytest.mark.long
def test_ranks_come_and_go_in_a_sharded_job(tmp_path):
    with sharded(tmp_path / "elastic") as job:
        job.shrink_grow_and_lose_a_rank()
        job.leave(1)
        job.wait_for_world(2)
        done = job.stop()
    assert_nothing_was_lost(done, tmp_path)


@pytest.mark.long
def test_a_frozen_layer_is_built_for_each_size(tmp_path):
    with sharded(tmp_path / "elastic", "--frozen") as job:
        job.shrink_grow_and_lose_a_rank()
        done = job.stop()
    assert_nothing_was_lost(done, tmp_path, "--frozen")


@pytest.mark.long
def test_the_elastic_issues_sequence(tmp_path):
    with sharded(tmp_path / "elastic") as job:
        done = job.go_through_sizes()
    assert_nothing_was_lost(done, tmp_path)


@pytest.mark.long
def test_a_replica_may_be_a_slice_of_a_mesh(tmp_path):
    options = ["--ranks-per-replica", "2"]
    with sharded(tmp_path / "elastic", "--kind", "tp", options=options) as job:
        job.start(0, 1)
        job.wait_for_world(4)
        job.kill_rank(2)
        job.leave(1)
        job.wait_for_world(2)
        job.start(1, 2, 3)
        job.wait_for_world(8)
        job.lose(2)
        job.wait_for_world(6)
        job.scale(2)
        job.wait_for_world(4)
        done = job.stop()
    assert_nothing_was_lost(done, tmp_path, "--kind", "tp")
