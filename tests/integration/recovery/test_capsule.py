"""Deaths around the copy of what forward changes on each rank: what a decided step needs is never overwritten."""

import pytest

from harness import JOBS, assert_same_history, assert_survivors_kept_their_process, finish, start

UNTIL = 6


def run_dying(folder, *how, inject=()):
    """small.py's model with BatchNorm and an averaged model, whose counter is a buffer that the update changes."""
    injected = [part for text in inject for part in ("--inject", text)]
    process, command = start(
        folder, JOBS / "dies_in_capsule.py", *how, "--out", folder, "--until", UNTIL, "--model", "rich",
        world=2, options=injected,
    )  # fmt: skip
    return finish(folder, process, command)


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_rank_that_dies_where_its_first_update_takes_a_buffer_out_of_the_capsule_loses_nothing(
    tmp_path, undisturbed, victim
):
    job = run_dying(tmp_path, victim, 1)
    assert_same_history(job, undisturbed(2, "rich", UNTIL), UNTIL)
    assert_survivors_kept_their_process(job, [victim], 2)
    assert not job.events("restart"), job.explain()


def test_a_buffer_that_a_communicating_update_changes_is_not_put_back_after_the_step_counted(tmp_path, undisturbed):
    job = run_dying(tmp_path, 1, 2, "--communicates", inject=["kill:rank=0,step=5,phase=backward"])
    assert_same_history(job, undisturbed(2, "rich", UNTIL), UNTIL)
    assert not job.events("restart"), job.explain()
