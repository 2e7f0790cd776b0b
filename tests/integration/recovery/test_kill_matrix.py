"""SIGKILL in every phase of a step, of every rank: nothing is lost, nothing is repeated, no bit changes."""

import re

import pytest

from harness import PHASES, assert_same_history, assert_survivors_kept_their_process, run_small

UNTIL = 12


def kills(phase, world):
    """Each rank once, a few steps apart."""
    return [f"kill:rank={rank},step={2 + 2 * rank},phase={phase}" for rank in range(world)]


def check(job, reference, world, killed, faults=None):
    assert_same_history(job, reference, UNTIL)
    assert_survivors_kept_their_process(job, killed, world)
    assert len(job.events("verdict")) == (len(killed) if faults is None else faults), job.explain()
    assert not job.events("restart"), job.explain()


def test_ranks_that_are_killed_in_one_phase_after_the_other_are_replaced_and_no_bit_changes(tmp_path, undisturbed):
    phases = ["backward", "allreduce", "after_vote", "update", "before_vote"]
    killed = [1, 0, 2, 1, 0]
    steps = range(3, 12, 2)
    inject = [f"kill:rank={rank},step={step},phase={phase}" for rank, step, phase in zip(killed, steps, phases)]
    job = run_small(tmp_path, world=3, spares=1, inject=inject)
    check(job, undisturbed(3), 3, killed)


def test_a_killed_rank_is_replaced_from_the_zygote_and_no_bit_changes(tmp_path, undisturbed):
    inject = ["kill:rank=0,step=3,phase=backward", "kill:rank=1,step=6,phase=between"]
    job = run_small(tmp_path, world=2, inject=inject)
    check(job, undisturbed(2), 2, [0, 1])
    # Which of the two notices of a death comes first is the machine's to say.
    how = r"(?:is gone|was ended by SIGKILL)"
    line = rf"^keepstep: rank (\d) \(pid \d+\) {how}; generation (\d) goes on from step (\d)$"
    said = re.findall(line, job.output, re.MULTILINE)
    assert said == [("0", "2", "3"), ("1", "3", "6")], job.explain()


def test_batch_norm_dropout_clipping_schedule_and_a_scaler_that_skips_steps_survive(tmp_path, undisturbed):
    inject = ["kill:rank=1,step=3,phase=allreduce", "kill:rank=0,step=8,phase=after_vote"]
    job = run_small(tmp_path, world=2, spares=1, inject=inject, model="rich")
    check(job, undisturbed(2, "rich"), 2, [1, 0])
    scales = [line["scale"] for line in job.metrics]
    assert scales[0] < 2.0**126, "the scaler skipped no step"


def test_a_fault_in_the_first_step_starts_from_the_first_capsule(tmp_path, undisturbed):
    job = run_small(tmp_path, world=2, inject=["kill:rank=1,step=1,phase=backward"], model="rich")
    check(job, undisturbed(2, "rich"), 2, [1])


@pytest.mark.long
def test_a_process_group_and_a_wrapper_made_by_hand_recover_too(tmp_path, undisturbed):
    inject = ["kill:rank=0,step=3,phase=backward", "kill:rank=1,step=7,phase=update"]
    job = run_small(tmp_path, world=2, spares=1, inject=inject, extra=["--by-hand"])
    check(job, undisturbed(2), 2, [0, 1])


def test_a_rank_killed_during_another_recovery_loses_nothing(tmp_path, undisturbed):
    inject = ["kill:rank=1,step=4,phase=backward", "kill:rank=0,step=4,phase=recovery"]
    job = run_small(tmp_path, world=3, spares=1, inject=inject)
    assert_same_history(job, undisturbed(3), UNTIL)
    assert not job.events("restart"), job.explain()


def test_a_newcomer_killed_while_it_hydrates_is_replaced_too(tmp_path, undisturbed):
    inject = ["kill:rank=1,step=4,phase=backward", "kill:rank=1,step=4,phase=hydrate"]
    job = run_small(tmp_path, world=2, spares=1, inject=inject)
    assert_same_history(job, undisturbed(2), UNTIL)
    assert not job.events("restart"), job.explain()


def test_two_ranks_killed_at_once_lose_nothing_while_a_clean_rank_survives(tmp_path, undisturbed):
    inject = ["kill:rank=1,step=5,phase=before_vote", "kill:rank=2,step=5,phase=before_vote"]
    job = run_small(tmp_path, world=3, spares=1, inject=inject)
    assert_same_history(job, undisturbed(3), UNTIL)
    assert not job.events("restart"), job.explain()


def test_when_all_ranks_die_at_once_the_job_restarts_and_says_so(tmp_path, undisturbed):
    inject = [f"kill:rank={rank},step=5,phase=before_vote" for rank in range(2)]
    job = run_small(tmp_path, world=2, inject=inject)
    assert job.exit_code == 0, job.explain()
    assert job.events("restart"), job.explain()
    assert job.finals()[0]["final"] == undisturbed(2).finals()[0]["final"], job.explain()


@pytest.mark.parametrize("phase", ["forward", pytest.param("update", marks=pytest.mark.long)])
def test_a_transient_exception_is_redone_in_the_same_process(tmp_path, undisturbed, phase):
    job = run_small(tmp_path, world=2, inject=[f"exception:rank=1,step=4,phase={phase}"])
    check(job, undisturbed(2), 2, killed=[], faults=1)


@pytest.mark.long
def test_a_segfault_is_survived_like_a_kill(tmp_path, undisturbed):
    job = run_small(tmp_path, world=2, spares=1, inject=["segv:rank=1,step=4,phase=forward"])
    check(job, undisturbed(2), 2, [1])


@pytest.mark.long
@pytest.mark.parametrize("spares", [0, 1])
@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_every_rank_every_world(tmp_path, undisturbed, phase, world, spares):
    job = run_small(tmp_path, world=world, spares=spares, inject=kills(phase, world))
    check(job, undisturbed(world), world, list(range(world)))


@pytest.mark.long
@pytest.mark.parametrize("spares", [0, 1])
@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("phase", ["recovery", "hydrate"])
def test_every_rank_dies_during_a_recovery(tmp_path, undisturbed, phase, world, spares):
    inject = []
    for rank in range(world):
        other = (rank + 1) % world
        inject.append(f"kill:rank={rank},step={2 + 2 * rank},phase=backward")
        victim = rank if phase == "hydrate" else other
        inject.append(f"kill:rank={victim},step={2 + 2 * rank},phase={phase}")
    job = run_small(tmp_path, world=world, spares=spares, inject=inject)
    # With two ranks, the second death may leave no clean rank: then a restart is the right answer.
    if job.events("restart"):
        assert world == 2 and phase == "recovery", job.explain()
        assert job.exit_code == 0
        assert job.finals()[0]["final"] == undisturbed(world).finals()[0]["final"]
    else:
        assert_same_history(job, undisturbed(world), UNTIL)
