"""The life of an NCCL backend through faults, with a stand-in for it: aborted once, connected anew or made anew."""

import json

import pytest
import torch.distributed as dist

from harness import JOBS, assert_same_history, assert_survivors_kept_their_process, finish, start

UNTIL = 10
INJECT = ["--inject", "kill:rank=1,step=4,phase=backward"]

pytestmark = pytest.mark.skipif(
    not hasattr(dist.Backend, "_ensure_backend_registered"), reason="this torch makes NCCL's backends without a plug-in"
)


def run(folder, *extra, spares=1, options=()):
    process, command = start(
        folder, JOBS / "stand_in_nccl.py", "--out", folder, "--until", UNTIL, *extra, spares=spares, options=options
    )
    return finish(folder, process, command)


def lives(folder):
    """What was done to the backends of each process."""
    return {
        int(path.stem): [json.loads(line) for line in path.read_text().splitlines()] for path in folder.glob("*.nccl")
    }


def test_a_world_that_can_be_reconfigured_is_aborted_once_and_connected_again_in_place(tmp_path, undisturbed):
    job = run(tmp_path, options=INJECT)
    assert_same_history(job, undisturbed(2, until=UNTIL), UNTIL)
    assert_survivors_kept_their_process(job, [1], 2)
    survivor = lives(tmp_path)[job.pids(0)[0]]
    assert [event["what"] for event in survivor] == ["made", "reconfigure", "abort", "reconfigure"], job.explain()
    assert not survivor[2]["main"], "the main thread may hang in the collective that is to be aborted"
    assert [survivor[1]["uuid"], survivor[3]["uuid"]] == [1, 2], "a number that was never used before"
    newcomer = lives(tmp_path)[job.pids(1)[-1]]
    assert newcomer[-1]["handles"] == survivor[3]["handles"], job.explain()
    assert newcomer[-1]["handles"][0].startswith("nccl2:0:1:"), "the survivor's, of generation 1"
    assert newcomer[-1]["handles"][1].startswith("nccl2:1:-1:"), "the newcomer's first"


@pytest.mark.long
def test_a_world_that_cannot_be_is_made_anew(tmp_path, undisturbed, monkeypatch):
    monkeypatch.setenv("KEEPSTEP_NCCL_RECONFIGURE", "0")
    job = run(tmp_path, options=INJECT)
    assert_same_history(job, undisturbed(2, until=UNTIL), UNTIL)
    assert_survivors_kept_their_process(job, [1], 2)
    survivor = lives(tmp_path)[job.pids(0)[0]]
    assert [(event["what"], event["number"]) for event in survivor] == [
        ("made", 0), ("abort", 0), ("shutdown", 0), ("made", 1),
    ], job.explain()  # fmt: skip
    assert survivor[2]["aborted"], "nothing is shut down while its peers are gone and it is alive"


@pytest.mark.long
def test_a_group_made_by_hand_is_aborted_and_made_anew(tmp_path, undisturbed):
    job = run(tmp_path, "--by-hand", "--backend", "cpu:keepstep,cuda:nccl", options=INJECT)
    assert_same_history(job, undisturbed(2, until=UNTIL), UNTIL)
    survivor = lives(tmp_path)[job.pids(0)[0]]
    assert [event["what"] for event in survivor] == ["made", "abort", "shutdown", "made"], job.explain()


def test_a_death_while_the_others_connect_costs_them_the_connection_and_not_the_process(tmp_path, undisturbed):
    # Rank 1's successor dies as it connects. Rank 0 waits for it in a call that nothing can end: it leaves that behind.
    job = run(tmp_path, "--die-in-connect", options=INJECT, spares=2)
    assert_same_history(job, undisturbed(2, until=UNTIL), UNTIL)
    survivor = lives(tmp_path)[job.pids(0)[0]]
    assert [(event["what"], event["number"]) for event in survivor] == [
        ("made", 0), ("reconfigure", 0), ("abort", 0), ("abort", 0), ("made", 1), ("reconfigure", 1),
    ], job.explain()  # fmt: skip
    assert survivor[-1]["uuid"] == 3
    assert len(set(job.pids(0))) == 1, job.explain()
    assert not job.events("restart"), job.explain()
