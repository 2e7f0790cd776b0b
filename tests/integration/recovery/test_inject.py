"""Faults of `--inject` beside those of the kill matrix: they are real, and the job's history is that without them."""

import pytest

from harness import assert_same_history, run_small
from several_nodes import run_small_on_nodes


def causes(job):
    return [line["because"] for line in job.events("injected")]


def test_memory_that_runs_out_is_an_exception_or_a_death_and_neither_costs_a_step(tmp_path, undisturbed):
    faults = ["oom:rank=0,step=3,phase=forward,mib=64", "oom:rank=1,step=6,phase=backward,what=kill,mib=64"]
    job = run_small(tmp_path, inject=faults)
    assert_same_history(job, undisturbed(2), 12)
    assert causes(job) == faults
    assert [line["kind"] for line in job.events("fault_detected")] == ["exception", "death"], job.explain()


@pytest.mark.parametrize(
    "fault",
    [
        "stop:rank=1,step=4,phase=forward,seconds=0.2",
        pytest.param("gil:rank=1,step=4,phase=backward,seconds=0.2", marks=pytest.mark.long),
        pytest.param("loop:rank=0,step=4,phase=update,seconds=0.2", marks=pytest.mark.long),
        pytest.param("slow:rank=1,step=4,seconds=0.02,times=4", marks=pytest.mark.long),
        "agent-stop:rank=0,step=4,seconds=0.2",
    ],
)
def test_a_fault_that_passes_changes_nothing(tmp_path, undisturbed, fault):
    job = run_small(tmp_path, inject=[fault], options=["--hang-timeout", "off"])  # else a stopped rank is replaced
    assert_same_history(job, undisturbed(2), 12)
    assert causes(job) == [fault]
    assert not job.events("fault_detected"), job.explain()


@pytest.mark.long
def test_training_goes_on_while_the_disk_is_full(tmp_path, undisturbed):
    job = run_small(tmp_path, inject=["disk-full:rank=0,step=4"])
    assert job.exit_code == 0, job.explain()
    assert causes(job) == ["disk-full:rank=0,step=4"]  # the line before
    assert len(job.metrics) < 12 and job.events("job_ended") == []  # what came after is not there
    assert {rank: final["final"] for rank, final in job.finals().items()} == {
        rank: final["final"] for rank, final in undisturbed(2).finals().items()
    }


@pytest.mark.parametrize("what", ["parameter", pytest.param("gradient", marks=pytest.mark.long)])
def test_a_flipped_bit_makes_one_rank_differ_from_the_others(tmp_path, undisturbed, what):
    job = run_small(tmp_path, inject=[f"flip:rank=1,step=4,what={what},seed=2"], options=["--digests=off"])
    (line,) = job.events("injected")
    assert line["rank"] == 1 and line["step"] == 4 and line["detail"].startswith("model/"), job.explain()
    finals, reference = job.finals(), undisturbed(2).finals()
    assert finals[1]["final"] != reference[1]["final"], job.explain()


def test_faults_at_random_are_survived_and_as_many_as_asked(tmp_path, undisturbed):
    job = run_small(tmp_path, inject=["kill:rank=any,step=1,phase=backward,probability=0.3,seed=11,times=3"])
    assert_same_history(job, undisturbed(2), 12)
    assert 1 <= len(causes(job)) <= 3
    steps = [line["step"] for line in job.events("injected")]
    assert len(set(steps)) == len(steps), "once a step at most"


@pytest.mark.long
def test_slow_links_between_nodes_change_nothing(tmp_path, undisturbed):
    job = run_small_on_nodes(tmp_path, nodes=2, world=1, until=6, inject=["link-delay:rank=1,step=2,ms=2"])
    assert job.exit_code == 0, job.explain()
    reference = undisturbed(2, until=6)
    assert [line["bits"] for line in job.metrics] == [line["bits"] for line in reference.metrics]


@pytest.mark.long
def test_more_faults_than_a_packet_holds_reach_their_worker(tmp_path, undisturbed):
    later = [f"kill:rank={number % 2},step={1000 + number},phase=forward" for number in range(1000)]
    job = run_small(tmp_path, inject=[*later, "kill:rank=1,step=4,phase=backward"])
    assert_same_history(job, undisturbed(2), 12)
    assert causes(job) == ["kill:rank=1,step=4,phase=backward"]
