"""torchtitan's trainer: ranks are killed in each phase of a step, and in what it does between two steps.

What it logs for TensorBoard, its checkpoints and all bits of the state equal those of an undisturbed job.
"""

import pytest
from killer import SCRIPTS
from test_integrations import WORLD, assert_only_this_rank_has_another_process, assert_same_as, left_by

from harness import PHASES, finish, json_lines, start

STEPS = 10
LONG_S = 900  # each process imports torch's compiler with torchtitan: 7 s of CPU time
# At a step after which it saves and validates, and at one of the next.
DEATHS = [
    "before log:3", "after log:6", "before dcp_save:6", "after dcp_save:3", "before validate:9", "after validate:6",
]  # fmt: skip


def run(folder, case, *arguments, until=STEPS, spares=1, inject=()):
    options = [part for text in inject for part in ("--inject", text)]
    process, command = start(
        folder, SCRIPTS / "titan_train.py", "--out", folder, "--until", until, "--case", case, *arguments, world=WORLD,
        spares=spares, options=options,
    )  # fmt: skip
    return finish(folder, process, command, LONG_S)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    known = {}

    def get(case):
        if case not in known:
            left = left_by(run(tmp_path_factory.mktemp(case), case, spares=0))
            assert [line["step"] for line in left["logged"]] == list(range(1, STEPS + 1))
            losses = [line["step"] for line in left["told"] if line["event"] == "loss_metrics/global_avg_loss"]
            assert losses == list(range(1, STEPS + 1))
            assert [line["event"] for line in left["told"]].count("folder") == 1
            assert left["saved"] == ["step-10", "step-6", "step-9"]
            known[case] = left
        return known[case]

    return get


@pytest.mark.long
def test_a_rank_killed_in_a_step_changes_nothing(undisturbed, tmp_path):
    job = run(tmp_path, "plain", inject=["kill:rank=1,step=4,phase=backward"])
    assert_same_as(undisturbed("plain"), job)
    assert_only_this_rank_has_another_process(job, 1)


@pytest.mark.long
@pytest.mark.parametrize("rank", range(WORLD))
def test_a_rank_killed_in_each_phase_changes_nothing(undisturbed, tmp_path, rank):
    deaths = [f"kill:rank={rank},step={step},phase={phase}" for step, phase in enumerate(PHASES, 3)]
    job = run(tmp_path, "plain", inject=deaths)
    assert_same_as(undisturbed("plain"), job)
    assert_only_this_rank_has_another_process(job, rank)


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_killed_between_steps_changes_nothing(undisturbed, tmp_path, rank):
    """What was logged by then is not logged again; what was interrupted is done again."""
    job = run(tmp_path, "plain", "--die", ", ".join(f"{rank}:{event}" for event in DEATHS))
    assert len(list(tmp_path.glob("died at *"))) == len(DEATHS), job.explain()
    assert_same_as(undisturbed("plain"), job)
    assert_only_this_rank_has_another_process(job, rank)


@pytest.mark.long
def test_the_command_line_does_the_same(undisturbed, tmp_path):
    folder = tmp_path / "job"
    options = ["--inject", "kill:rank=0,step=4,phase=backward"]
    process, command = start(
        folder, SCRIPTS / "titan_main.py", "--out", folder, "--until", STEPS, world=WORLD, spares=1, options=options
    )
    job = finish(folder, process, command, LONG_S)
    assert job.exit_code == 0, job.explain()
    assert json_lines(folder / "told.jsonl") == undisturbed("plain")["told"], job.explain()
    assert_only_this_rank_has_another_process(job, 0)


TWICE = ["kill:rank=0,step=4,phase=backward", "kill:rank=3,step=6,phase=after_vote"]


@pytest.mark.long
@pytest.mark.parametrize("case", ["hybrid", "tensor"])
def test_two_deaths_change_nothing_with_other_parallelism(undisturbed, tmp_path, case):
    job = run(tmp_path, case, inject=TWICE)
    assert_same_as(undisturbed(case), job)


@pytest.mark.long
def test_a_trainer_goes_on_from_its_own_checkpoint(tmp_path):
    """One rank dies before the first step after it."""
    reference = left_by(run(tmp_path / "undisturbed", "resumes", spares=0))
    saves = ["--saves", tmp_path / "saves"]
    first = left_by(run(tmp_path / "first", "resumes", *saves, spares=0, until=6))
    deaths = ["kill:rank=0,step=1,phase=backward", "kill:rank=3,step=2,phase=after_vote"]
    second = run(tmp_path / "second", "resumes", *saves, inject=deaths)
    left = left_by(second)
    losses = [[line["global_avg_loss"] for line in each["logged"]] for each in (first, left, reference)]
    assert losses[0] + losses[1] == losses[2], second.explain()
    assert left["final"] == reference["final"], second.explain()
