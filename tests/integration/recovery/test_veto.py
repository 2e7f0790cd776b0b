"""One rank's veto keeps all ranks from an update, whoever dies around it."""

import pytest

from harness import JOBS, assert_same_history, finish, run_small, start
from several_nodes import run_small_on_nodes

VETO = ["--veto-at", 4]


@pytest.fixture(scope="module")
def vetoed(tmp_path_factory):
    job = run_small(tmp_path_factory.mktemp("vetoed"), until=8, extra=VETO)
    assert job.exit_code == 0, job.explain()
    return job


def skipped(job):
    """By rank: the steps whose update it skipped, as its program saw it."""
    return {
        rank: sorted({note["step"] for note in job.notes if note.get("rank") == rank and note.get("vetoed")})
        for rank in job.finals()
    }


def test_all_ranks_skip_the_update_alike_and_the_journal_says_who_and_why(vetoed, undisturbed):
    assert skipped(vetoed) == {0: [4], 1: [4]}, vetoed.explain()
    (line,) = vetoed.events("veto")
    assert line["rank"] == 1 and line["step"] == 4, vetoed.explain()
    assert line["because"] == "rank 1 vetoes the update of step 4: it was asked to"
    finals = vetoed.finals()
    assert finals[0]["final"] == finals[1]["final"] != undisturbed(2, until=8).finals()[0]["final"]
    # It counts: it has its loss and its samples, and the update before it is that of every other job.
    assert [line["step"] for line in vetoed.metrics] == list(range(1, 9))
    ordinary = undisturbed(2, until=8).metrics
    assert [line["bits"] for line in vetoed.metrics[:4]] == [line["bits"] for line in ordinary[:4]]
    assert vetoed.metrics[4]["bits"] != ordinary[4]["bits"]


DEATHS = [(rank, phase) for rank in (0, 1) for phase in ("before_vote", "after_vote", "between")]


@pytest.mark.parametrize(
    ("rank", "phase"),
    [each if each == (1, "after_vote") else pytest.param(*each, marks=pytest.mark.long) for each in DEATHS],
)
def test_a_rank_that_dies_around_a_vetoed_step_changes_no_bit(tmp_path, vetoed, rank, phase):
    job = run_small(tmp_path, until=8, spares=1, extra=VETO, inject=[f"kill:rank={rank},step=4,phase={phase}"])
    assert_same_history(job, vetoed, 8)


@pytest.mark.long
@pytest.mark.parametrize("phase", ["after_vote", "between"])
def test_ranks_of_another_node_skip_it_too_when_only_the_verdict_tells_them(tmp_path, vetoed, phase):
    fault = [f"kill:rank=0,step=4,phase={phase}"]
    job = run_small_on_nodes(tmp_path, nodes=2, world=1, until=8, extra=VETO, inject=fault)
    assert job.exit_code == 0, job.explain()
    assert [line["bits"] for line in job.metrics] == [line["bits"] for line in vetoed.metrics], job.explain()


@pytest.mark.parametrize("communicates", [[], pytest.param(["--communicates"], marks=pytest.mark.long)])
def test_what_a_vetoed_step_set_itself_stays(tmp_path, communicates):
    process, command = start(tmp_path, JOBS / "vetoed_manner.py", *communicates, world=1)
    job = finish(tmp_path, process, command)
    assert job.exit_code == 0 and job.output == "as set\n", job.explain()
