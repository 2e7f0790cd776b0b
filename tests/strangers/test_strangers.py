"""Training scripts of the kinds that others write, under a killer from outside: the bits of an undisturbed run, or an
error before any fault that says what to write."""

import os
import random
import shlex
import sys
from dataclasses import replace

import pytest
from killer import killed, undisturbed

pytestmark = pytest.mark.long

KILLS = 10  # of each script
KILLS_A_JOB = 3
AS_WRITTEN = [
    "validation", "plateau", "ema", "schedule_free", "gan", "lora", "swa", "lbfgs", "soap", "groups", "compiled",
    "compiled_replica",
]  # fmt: skip
# Scripts that were wrong as first written, and what keepstep's error must say to write.
REFUSED = {
    "ema": "with run.restored():",
    "schedule_free": "with run.restored():",
    "lbfgs": "step.commit(..., communicates=True)",
}


def seed_of(request):
    """Printed; KEEPSTEP_STRANGERS_SEED repeats a run."""
    seed = int(os.environ.get("KEEPSTEP_STRANGERS_SEED") or random.SystemRandom().randrange(10**6))
    repeat = f"KEEPSTEP_STRANGERS_SEED={seed} {sys.executable} -m pytest -m long {shlex.quote(request.node.nodeid)}"
    print(f"repeat: {repeat}")
    return seed, repeat


def jobs_with_kills(request, folder, name, *arguments, without=(), options=()):
    """Kills ranks of jobs of this script until there were KILLS, and compares each job with an undisturbed one.

    Yields each job and how to repeat it. What was logged under the names `without` is not compared.
    """
    seed, repeat = seed_of(request)
    draws = random.Random(f"{name} {seed}")
    script = f"{name}.py"
    reference = undisturbed(folder / "undisturbed", script, *arguments)
    assert reference.job.exit_code == 0, reference.explain()
    assert reference.logged and len(reference.finals) == 2, reference.explain()
    kills, number = 0, 0
    while kills < KILLS:
        number += 1
        assert number <= 2 * KILLS, f"only {kills} ranks were killed in {number - 1} jobs: they end too early"
        left, done = killed(
            folder / f"killed-{number}", script, *arguments, random=draws, kills=min(KILLS_A_JOB, KILLS - kills),
            seconds=reference.seconds, options=options,
        )  # fmt: skip
        if left.job.events("late_death"):
            # The last one came between the function's return and the process's end, which is no fault of training: the
            # job says what may be missing, and all else is as it was.
            assert left.job.exit_code == 1, left.explain()
            difference = replace(left, finals=reference.finals).differs_from(reference, without)
            assert difference is None, f"{difference}{left.explain()}"
            kills += len(done) - 1
            continue
        kills += len(done)
        why = f"job {number}, killed: {', '.join(done) or 'none'}\n{repeat}{left.explain()}"
        assert left.job.exit_code == 0, f"it ended\n{why}"
        difference = left.differs_from(reference, without)
        assert difference is None, f"{difference}\n{why}"
        yield left, why


def assert_no_step_lost(jobs):
    for left, why in jobs:
        assert not left.job.events("restart"), f"all ranks began again\n{why}"


@pytest.mark.parametrize("name", AS_WRITTEN)
def test_every_kill_leaves_the_bits_of_an_undisturbed_run_and_costs_no_step(request, tmp_path, name):
    assert_no_step_lost(jobs_with_kills(request, tmp_path, name))


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_survive_is_an_error_before_any_fault_that_says_what_to_write(tmp_path, name):
    left = undisturbed(tmp_path, f"{name}.py", "--as-first-written")
    assert left.job.exit_code != 0, left.explain()
    assert REFUSED[name] in left.job.output, left.explain()
    assert len(left.logged) <= 4, f"it is wrong from step 3 on at the latest{left.explain()}"


def test_a_validation_in_the_loop_changes_no_bit_of_what_is_trained(request, tmp_path):
    """Where it is interrupted it is not done again, so what it would have logged may be missing; no loss differs."""
    assert_no_step_lost(jobs_with_kills(request, tmp_path, "validation", "--as-first-written", without=["validation"]))


def test_an_unchanged_trainer_goes_on_from_its_own_checkpoint_to_the_same_bits(request, tmp_path):
    for _ in jobs_with_kills(request, tmp_path, "hf_trainer", options=["--max-restarts", KILLS]):
        pass
