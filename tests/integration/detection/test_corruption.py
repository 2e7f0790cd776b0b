"""A bit that flips silently in one rank's gradients or parameters is caught, and the right rank replaced."""

import pytest

from harness import assert_same_history, corruptions, run_small
from several_nodes import run_small_on_nodes


def flip(what, rank, step, seed=2, **more):
    parts = {"rank": rank, "step": step, "what": what, "seed": seed, **more}
    return "flip:" + ",".join(f"{key}={value}" for key, value in parts.items())


def test_a_gradient_that_differs_from_the_majority_never_commits_and_its_rank_is_replaced(tmp_path, undisturbed):
    faults = [flip("gradient", 1, 4), flip("gradient", 2, 8, seed=5)]
    job = run_small(tmp_path, world=3, spares=1, inject=faults)
    assert_same_history(job, undisturbed(3), 12)
    assert corruptions(job) == [(4, "gradients", [1]), (8, "gradients", [2])], job.explain()
    for rank, replaced in ((0, 0), (1, 1), (2, 1)):
        pids = job.pids(rank)
        assert len(set(pids)) == 1 + replaced, f"rank {rank}: {pids}{job.explain()}"
    assert [line["kind"] for line in job.events("fault_detected")] == ["digests"] * 2, job.explain()


@pytest.mark.long
def test_of_two_ranks_the_redo_tells_which_one_was_wrong(tmp_path, undisturbed):
    job = run_small(tmp_path, world=2, spares=1, inject=[flip("gradient", 0, 5)])
    assert_same_history(job, undisturbed(2), 12)
    assert corruptions(job) == [(5, "gradients", []), (5, "gradients", [0])], job.explain()
    assert len(set(job.pids(0))) == 2 and len(set(job.pids(1))) == 1, job.explain()


@pytest.mark.long
def test_a_parameter_that_differs_is_found_before_the_update_when_each_step_compares(tmp_path, undisturbed):
    fault = flip("parameter", 2, 6, phase="between")
    job = run_small(tmp_path, world=3, spares=1, inject=[fault], options=["--digest-every", 1])
    assert_same_history(job, undisturbed(3), 12)
    assert corruptions(job) == [(6, "state", [2])], job.explain()


def test_a_parameter_that_differs_is_found_within_as_many_steps_as_said_and_the_job_goes_on(tmp_path):
    fault = flip("parameter", 1, 5, phase="between")
    job = run_small(tmp_path, world=3, spares=1, inject=[fault], options=["--digest-every", 4])
    assert job.exit_code == 0, job.explain()
    assert corruptions(job) == [(8, "state", [1])], job.explain()
    assert len({final["final"] for final in job.finals().values()}) == 1, job.explain()
    assert [line["step"] for line in job.metrics] == list(range(1, 13))


def test_two_ranks_with_different_parameters_end_the_job_and_it_says_why(tmp_path):
    fault = flip("parameter", 1, 5, phase="between")
    job = run_small(tmp_path, world=2, inject=[fault], options=["--digest-every", 1])
    assert job.exit_code == 1, job.explain()
    assert "the protected state at step 4 differs" in job.output and "majority" in job.output, job.explain()


@pytest.mark.long
def test_ranks_on_several_nodes_compare_too(tmp_path, undisturbed):
    job = run_small_on_nodes(tmp_path, nodes=2, world=2, until=8, inject=[flip("gradient", 2, 4)])
    assert job.exit_code == 0, job.explain()
    reference = undisturbed(4, until=8)
    assert [line["bits"] for line in job.metrics] == [line["bits"] for line in reference.metrics]
    assert corruptions(job) == [(4, "gradients", [2])], job.explain()


def test_a_model_that_nobody_wraps_is_not_compared_and_the_job_says_so(tmp_path):
    job = run_small(tmp_path, world=2, until=3, extra=["--alone"])
    assert job.exit_code == 0, job.explain()
    assert "gradients and state are not compared between ranks: no model is wrapped" in job.output
    assert "Write model = run.ddp(state.model)" in job.output, job.output
    assert len(job.events("not_compared")) == 1, job.explain()


@pytest.mark.long
@pytest.mark.parametrize("round", range(5))
def test_fifty_flips_of_each_kind_are_found_and_named(tmp_path, undisturbed, round):
    steps = range(4, 14)
    ranks = {step: (step * 7 + round) % 3 for step in steps}
    reference = undisturbed(3, until=15)
    for what, phase in (("gradient", "before_vote"), ("parameter", "between")):
        faults = [flip(what, ranks[step], step, seed=100 * round + step, phase=phase) for step in steps]
        job = run_small(
            tmp_path / what, world=3, spares=1, until=15, inject=faults,
            options=["--digest-every", 1],
        )  # fmt: skip
        assert_same_history(job, reference, 15)
        kind = "gradients" if what == "gradient" else "state"
        assert corruptions(job) == [(step, kind, [ranks[step]]) for step in steps], job.explain()
