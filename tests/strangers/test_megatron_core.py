"""A loop over Megatron-core, on CPU tensors: ranks are killed in each phase of a step.

Losses, gradient norms and all bits of the state equal those of an undisturbed job; no survivor dies.
"""

import json

import pytest
from killer import SCRIPTS
from test_integrations import WORLD, assert_only_this_rank_has_another_process, left_by

from harness import PHASES, finish, start

STEPS = 10
LONG_S = 900


def run(folder, case, spares=1, inject=()):
    options = [part for text in inject for part in ("--inject", text)]
    process, command = start(
        folder, SCRIPTS / "megatron_loop.py", "--out", folder, "--until", STEPS, "--case", case, world=WORLD,
        spares=spares, options=options,
    )  # fmt: skip
    return finish(folder, process, command, LONG_S)


def left(job):
    """With what each rank's optimizer returned in each iteration: if one was done again, the same each time."""
    found = left_by(job)
    for rank in range(WORLD):
        lines = [json.loads(line) for line in (job.folder / f"steps.{rank}").read_text().splitlines()]
        returned = {number: rest for number, *rest in lines}
        assert all(returned[number] == rest for number, *rest in lines), lines
        found[f"rank {rank}"] = returned
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    known = {}

    def get(case):
        if case not in known:
            found = left(run(tmp_path_factory.mktemp(case), case, spares=0))
            assert [line["step"] for line in found["logged"]] == list(range(1, STEPS + 1))
            assert all("loss_here" in line for line in found["logged"])
            known[case] = found
        return known[case]

    return get


def assert_same(job, expected):
    """A rank that died after a vote has not written what its optimizer returned."""
    found = left(job)
    for rank in range(WORLD):
        name = f"rank {rank}"
        missing = expected[name].keys() - found[name].keys()
        assert len(missing) <= 1, (missing, job.explain())
        found[name] |= {number: expected[name][number] for number in missing}
    assert found == expected, job.explain()


@pytest.mark.long
def test_a_rank_killed_in_a_step_changes_nothing(undisturbed, tmp_path):
    job = run(tmp_path, "replicated", inject=["kill:rank=1,step=4,phase=backward"])
    assert_same(job, undisturbed("replicated"))
    assert_only_this_rank_has_another_process(job, 1)


@pytest.mark.long
@pytest.mark.parametrize("case", ["replicated", "distributed"])
@pytest.mark.parametrize("rank", [0, 3])
def test_a_rank_killed_in_each_phase_changes_nothing(undisturbed, tmp_path, case, rank):
    deaths = [f"kill:rank={rank},step={step},phase={phase}" for step, phase in enumerate(PHASES, 3)]
    job = run(tmp_path, case, inject=deaths)
    assert_same(job, undisturbed(case))
    assert_only_this_rank_has_another_process(job, rank)


@pytest.mark.long
@pytest.mark.parametrize(("case", "expected"), [("overlapping gather", "overlap_param_gather"), ("gloo", "of Gloo")])
def test_what_cannot_be_recovered_ends_the_job_before_it_trains(tmp_path, case, expected):
    job = run(tmp_path, case, spares=0)
    assert job.exit_code != 0 and expected in job.output and not job.metrics, job.explain()


@pytest.mark.long
@pytest.mark.parametrize("case", ["overlapped", "bfloat16", "instances", "tensor"])
def test_two_deaths_change_nothing_in_other_cases(undisturbed, tmp_path, case):
    deaths = ["kill:rank=0,step=4,phase=backward", "kill:rank=3,step=6,phase=after_vote"]
    assert_same(run(tmp_path, case, inject=deaths), undisturbed(case))
