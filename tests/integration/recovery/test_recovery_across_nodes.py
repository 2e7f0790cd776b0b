"""Faults in jobs of several nodes: no step is lost, and every bit is that of an undisturbed job on one node."""

import os
import signal

import pytest

from harness import JOBS, PHASES, assert_same_history, assert_survivors_kept_their_process, json_lines
from several_nodes import (
    finish_nodes,
    kill,
    lose_node_1,
    node_lines,
    run_small_on_nodes,
    start_node,
    start_nodes,
    wait_for_steps,
)
from several_nodes import free_port as a_port
from test_kill_matrix import check, kills


@pytest.mark.long
def test_two_nodes_compute_the_bits_of_one(tmp_path, undisturbed):
    assert_same_history(run_small_on_nodes(tmp_path), undisturbed(4), 12)


@pytest.mark.parametrize(
    "deaths",
    [[(0, 3, "backward"), (1, 5, "after_vote"), (2, 7, "allreduce"), (3, 9, "update")],
     *(pytest.param([(rank, 5, phase)], marks=pytest.mark.long) for rank in (0, 2)
       for phase in ("forward", "before_vote", "after_vote", "update", "between"))],
)  # fmt: skip
def test_a_killed_rank_is_replaced_on_its_node(tmp_path, undisturbed, deaths):
    job = run_small_on_nodes(tmp_path, inject=[f"kill:rank={rank},step={step},phase={at}" for rank, step, at in deaths])
    assert_same_history(job, undisturbed(4), 12)
    assert_survivors_kept_their_process(job, [rank for rank, _, _ in deaths], 4)


@pytest.mark.long
def test_the_only_rank_of_a_node_gets_its_state_from_another_node(tmp_path, undisturbed):
    job = run_small_on_nodes(tmp_path, world=1, model="rich", inject=["kill:rank=1,step=5,phase=backward"])
    assert_same_history(job, undisturbed(2, model="rich"), 12)
    (hydrated,) = [line for line in node_lines(tmp_path, "journal", 1) if line["event"] == "hydrated"][1:]
    assert hydrated["sources"] == [0], job.explain()


@pytest.mark.long
def test_an_exception_on_one_node_is_redone_by_all(tmp_path, undisturbed):
    job = run_small_on_nodes(tmp_path, inject=["exception:rank=3,step=4,phase=forward"])
    assert_same_history(job, undisturbed(4), 12)
    assert_survivors_kept_their_process(job, [], 4)
    other = node_lines(tmp_path, "metrics", 1)
    assert [line["loss"] for line in other] == [line["loss"] for line in job.metrics], "the loss is global everywhere"


UNTIL = 120  # enough that a launcher is killed in the middle


def assert_same_losses(job, reference):
    # What the lost node's ranks had logged for its last step or two is lost with its agent; the losses are not.
    assert job.exit_code == 0, job.explain()
    assert [line["step"] for line in job.metrics] == list(range(1, UNTIL + 1)), job.explain()
    assert [line["loss"] for line in job.metrics] == [line["loss"] for line in reference.metrics], job.explain()
    for rank, final in reference.finals().items():
        assert job.finals()[rank]["final"] == final["final"], f"rank {rank}{job.explain()}"


@pytest.mark.parametrize("model", ["rich", pytest.param("plain", marks=pytest.mark.long)])
def test_a_spare_node_takes_the_place_of_one_that_is_lost(tmp_path, undisturbed, model):
    nodes = start_nodes(
        tmp_path, JOBS / "small.py", "--out", tmp_path, "--until", UNTIL, "--model", model, launchers=[0, 1, 2],
        options=["--spare-nodes", 1],
    )  # fmt: skip
    job = lose_node_1(nodes, tmp_path, 10)
    assert_same_losses(job, undisturbed(4, model=model, until=UNTIL))
    assert_survivors_kept_their_process(job, [2, 3], 4)
    assert job.events("node_replaced"), job.explain()


@pytest.mark.long
def test_a_keeper_dies_with_the_node_whose_capsules_it_keeps(tmp_path, undisturbed):
    nodes = start_nodes(
        tmp_path, JOBS / "small.py", "--out", tmp_path, "--until", UNTIL, "--model", "rich", launchers=[0, 1, 2],
        options=["--spare-nodes", 1],
    )  # fmt: skip
    try:
        wait_for_steps(tmp_path, 10)
        # Ranks 2 and 3 are on node 1; their capsules' copies were in the processes of ranks 0 and 1.
        (keeper,) = {note["pid"] for note in notes(tmp_path) if note.get("rank") == 0 and "entry" in note}
        os.kill(keeper, signal.SIGKILL)
        kill(nodes[1])
        job = finish_nodes([nodes[0], nodes[2]])
    finally:
        for node in nodes:
            kill(node)
    assert_same_losses(job, undisturbed(4, model="rich", until=UNTIL))
    assert_survivors_kept_their_process(job, [0, 2, 3], 4)


def notes(folder):
    return [note for path in sorted(folder.glob("*.jsonl")) for note in json_lines(path)]


@pytest.mark.long
def test_a_lost_node_that_is_started_again_takes_its_place(tmp_path, undisturbed):
    endpoint = f"127.0.0.1:{a_port()}"
    what = [JOBS / "small.py", "--out", tmp_path, "--until", UNTIL]
    options = ["--node-timeout", 90]
    nodes = [start_node(tmp_path, rank, endpoint, *what, options=options) for rank in range(2)]
    try:
        wait_for_steps(tmp_path, 10)
        kill(nodes[1])
        nodes[0].wait_for_output("no spare node waits (--spare-nodes). Start `keepstep run` there again")
        nodes[0].wait_for_output("its ranks wait 90 s for a node (--node-timeout), then the job ends")
        # Its journal is the one of the node before, which nobody overwrites.
        nodes.append(start_node(tmp_path, 1, endpoint, *what, options=[*options, "--journal", tmp_path / "again"]))
        job = finish_nodes([nodes[0], nodes[2]])
    finally:
        for node in nodes:
            kill(node)
    assert_same_losses(job, undisturbed(4, until=UNTIL))
    (awaited,) = job.events("node_awaited")
    assert awaited["ranks"] == [2, 3] and awaited["for_s"] == 90, awaited


@pytest.mark.long
def test_a_node_started_again_before_its_loss_was_noticed_waits_for_its_place(tmp_path, undisturbed):
    endpoint = f"127.0.0.1:{a_port()}"
    what = [JOBS / "small.py", "--out", tmp_path, "--until", UNTIL]
    nodes = [start_node(tmp_path, rank, endpoint, *what) for rank in range(2)]
    try:
        wait_for_steps(tmp_path, 10)
        nodes.append(start_node(tmp_path / "again", 1, endpoint, *what))
        nodes[2].wait_for_output("tries again")
        kill(nodes[1])
        job = finish_nodes([nodes[0], nodes[2]])
    finally:
        for node in nodes:
            kill(node)
    assert_same_losses(job, undisturbed(4, until=UNTIL))


@pytest.mark.parametrize(
    ("option", "threads", "because"),
    [
        (["--seed", 7], "1", "--seed is '7' on node 2"),
        pytest.param([], "2", "would not compute the same bits as node 0", marks=pytest.mark.long),
    ],
)
def test_a_spare_node_that_does_not_fit_is_refused_and_the_job_goes_on(tmp_path, monkeypatch, option, threads, because):
    endpoint = f"127.0.0.1:{a_port()}"
    what = [JOBS / "small.py", "--out", tmp_path, "--until", 100_000, "--sleep", 0.05]
    options = ["--spare-nodes", 1]
    nodes = [start_node(tmp_path, rank, endpoint, *what, options=options) for rank in range(2)]
    try:
        wait_for_steps(tmp_path, 3)
        with monkeypatch.context() as its_own:
            its_own.setenv("OMP_NUM_THREADS", threads)
            nodes.append(start_node(tmp_path, 2, endpoint, *what, options=[*options, *option]))
        assert nodes[2].process.wait(120) == 1, nodes[2].output()
        assert because in nodes[2].output(), nodes[2].output()
        assert "The job goes on without this node" in nodes[2].output()
        wait_for_steps(tmp_path, len(json_lines(tmp_path / "journal" / "metrics.jsonl")) + 5)
        os.kill(nodes[0].process.pid, signal.SIGINT)
        job = finish_nodes(nodes[:2])
    finally:
        for node in nodes:
            kill(node)
    assert job.exit_code == 130, job.explain()
    (refused,) = job.events("node_refused")
    assert refused["refused_node"] == 2 and because in refused["because"], job.explain()
    assert not job.events("rung"), job.explain()


@pytest.mark.long
@pytest.mark.parametrize(("nodes", "world"), [(2, 1), (2, 2), (4, 1)])
@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_every_rank(tmp_path, undisturbed, phase, nodes, world):
    ranks = nodes * world
    job = run_small_on_nodes(tmp_path, nodes=nodes, world=world, spares=1, inject=kills(phase, ranks))
    check(job, undisturbed(ranks), ranks, list(range(ranks)))


@pytest.mark.long
@pytest.mark.parametrize("turn", range(5))
def test_two_nodes_are_lost_one_after_the_other(tmp_path, undisturbed, turn):
    nodes = start_nodes(
        tmp_path, JOBS / "small.py", "--out", tmp_path, "--until", UNTIL, "--model", "rich", nodes=3, world=1,
        launchers=range(5), options=["--spare-nodes", 2],
    )  # fmt: skip
    try:
        wait_for_steps(tmp_path, 10 + turn)
        kill(nodes[1])
        wait_for_steps(tmp_path, 40 + turn)
        kill(nodes[2])
        job = finish_nodes([nodes[0], nodes[3], nodes[4]])
    finally:
        for node in nodes:
            kill(node)
    assert_same_losses(job, undisturbed(3, model="rich", until=UNTIL))
    assert_survivors_kept_their_process(job, [1, 2], 3)
    assert not job.events("restart"), job.explain()
