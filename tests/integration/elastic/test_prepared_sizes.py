"""Loops over what run.prepare returns, with a global batch, in worlds that change: the same samples and losses."""

import pytest

from elastic_jobs import Elastic, samples_of
from harness import JOBS, finish, start

BATCH = ["--global-batch", 24, "--samples", 100]  # batches of 2: 12 a step, and an epoch is 50, filled up to 60


def losses_of(job):
    """The mean loss of each committed step, from what ranks wrote down before they voted."""
    attempts = {}
    for note in job.notes:
        if "loss" in note:
            attempts.setdefault(note["step"], {}).setdefault(note["generation"], []).append(note["loss"])
    return [sum(attempts[line["step"]][max(attempts[line["step"]])]) for line in job.metrics]


def fixed(folder, steps, world):
    process, command = start(
        folder, JOBS / "prepared_loop.py", "--out", folder, *BATCH, "--epochs", 1000, "--last-step", steps,
        world=world,
    )  # fmt: skip
    job = finish(folder, process, command)
    assert job.exit_code == 0, job.explain()
    return job


def go_through_some_sizes(job):
    job.shrink_grow_and_lose_a_rank()
    job.scale(3)
    job.wait_for_world(3)
    job.lose(1)
    job.wait_for_world(2)
    return job.stop()


def test_the_world_changes_and_samples_losses_and_schedule_do_not(tmp_path):
    with Elastic(
        tmp_path / "elastic", *BATCH, "--epochs", 1000, "--sleep", 0.03, script="prepared_loop.py"
    ) as elastic:  # fmt: skip
        done = go_through_some_sizes(elastic)
    reference = fixed(tmp_path / "fixed", len(done.metrics), 2)
    assert samples_of(done) == samples_of(reference)
    assert losses_of(done) == pytest.approx(losses_of(reference), rel=1e-3)
    for what in ("rate", "epoch"):
        assert [line[what] for line in done.metrics] == [line[what] for line in reference.metrics]
    assert {line["to"] for line in done.events("resized")} == {1, 2, 3, 4}
    (pid,) = {note["pid"] for note in done.notes if "entry" in note and note["rank"] == 0}
    assert pid


def test_a_size_that_does_not_share_the_batches_evenly_is_not_used(tmp_path):
    job = ["--global-batch", 8, "--samples", 100, "--epochs", 1000, "--sleep", 0.03]  # 4 batches a step
    with Elastic(tmp_path / "elastic", *job, per_node=3, script="prepared_loop.py") as elastic:
        elastic.start(0)
        elastic.wait_for_world(2)
        elastic.wait_for_more_steps(5)
        done = elastic.stop()
    ranks = {line["generation"]: line["ranks"] for line in done.events("generation_prepared")}
    assert {ranks[line["generation"]] for line in done.events("first_commit")} == {2}, done.explain()


def test_a_number_of_ranks_that_is_fixed_and_does_not_fit_is_refused(tmp_path):
    process, command = start(tmp_path, JOBS / "prepared_loop.py", "--out", tmp_path, "--global-batch", 6, world=2)
    job = finish(tmp_path, process, command)
    assert job.exit_code == 1, job.explain()
    assert "the 3 batches of a step cannot be shared evenly by 2 ranks" in job.output


def test_a_step_of_another_length_is_refused(tmp_path):
    process, command = start(
        tmp_path, JOBS / "prepared_loop.py", "--out", tmp_path, "--global-batch", 8, "--case", "hasty", world=2
    )
    job = finish(tmp_path, process, command)
    assert job.exit_code == 1, job.explain()
    assert "the optimizer steps after 1 of this rank's batches" in job.output, job.output
