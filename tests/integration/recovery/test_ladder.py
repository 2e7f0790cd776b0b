"""The upper rungs of the recovery ladder: what happens when replacing a process does not help."""

import os
import signal
import subprocess
import time

import pytest

from harness import (
    JOBS,
    KEEPSTEP,
    assert_same_history,
    assert_survivors_kept_their_process,
    environment,
    json_lines,
    run_small,
)
from several_nodes import finish_nodes, kill, start_nodes, wait_for_steps
from test_recovery_across_nodes import UNTIL, assert_same_losses


def rungs(job):
    return [line["rung"] for line in job.events("rung")]


@pytest.mark.parametrize("model", ["rich", pytest.param("plain", marks=pytest.mark.long)])
def test_a_step_that_costs_too_many_processes_restarts_all_with_their_state(tmp_path, undisturbed, model):
    # A death counts for the newest step that the brain has heard of: the first one may count for an earlier step.
    inject = ["kill:rank=1,step=5,phase=backward"] * 5
    job = run_small(tmp_path, world=3, spares=1, inject=inject, model=model)
    assert_same_history(job, undisturbed(3, model), 12)
    assert sorted(rungs(job)) == ["replace"] * 4 + ["restart_with_state"], job.explain()
    halves = [(line["restarted"], line["later"]) for line in job.events("restart_with_state")]
    assert halves == [([2], [0]), ([0], [])], job.explain()
    assert not job.events("restart"), job.explain()
    assert_survivors_kept_their_process(job, [1, 1, 1, 1, 1, 0, 2], 3)


def test_without_a_restart_left_such_a_step_ends_the_job(tmp_path):
    inject = ["kill:rank=1,step=5,phase=backward"] * 5
    job = run_small(tmp_path, world=2, inject=inject, options=["--max-restarts", 0])
    assert job.exit_code == 1, job.explain()
    assert rungs(job) in (["replace"] * 3 + ["end"], ["replace"] * 4 + ["end"]), job.explain()
    assert "fault 4 at step 5, 3 are allowed; all 0 restarts are used up" in job.output, job.explain()


BAD_STEP = """
import keepstep
import torch

class Bad(torch.optim.SGD):
    def step(self, closure):
        return super().step()

def build():
    model = torch.nn.Linear(2, 1)
    data = torch.utils.data.TensorDataset(torch.ones(64, 2))
    return keepstep.State(model=model, optimizer=Bad(model.parameters(), lr=0.1)).with_unprotected(data=data)

@keepstep.recoverable
def train(run):
    state = run.setup(build)
    model = run.ddp(state.model)
    for step in run.steps(state.data, global_batch=4, micro_batch=2, last_step=5):
        for (x,) in step:
            step.backward(model(x).mean())
        step.commit(state.optimizer.step)

train()
"""


def test_an_update_that_raises_on_all_ranks_is_named_and_ends_the_job_when_it_comes_back(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(BAD_STEP)
    command = [KEEPSTEP, "run", "--nproc-per-node", "2", "--journal", tmp_path / "run", script]
    done = subprocess.run(list(map(str, command)), env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    said = "failed at step 1: TypeError: Bad.step() missing 1 required positional argument: 'closure'"
    restarted, *_, ended = [line for line in done.stderr.splitlines() if line.startswith("keepstep: rank ")]
    assert f"{said}; no clean copy of step 1 is left: restart 1 of 3" in restarted
    assert f"{said}; no clean copy of step 1 is left; the same happened again after a restart" in ended
    assert "step.commit(state.optimizer.step)" in done.stderr  # where


def journal_of(folder, event):
    return [line for line in json_lines(folder / "journal" / "journal.jsonl") if line["event"] == event]


def wait_for_event(folder, event, count=1, limit_s=60):
    deadline = time.monotonic() + limit_s
    while len(journal_of(folder, event)) < count:
        assert time.monotonic() < deadline, f"no {count} '{event}' in the journal within {limit_s} s"
        time.sleep(0.01)


def kill_rank(folder, rank):
    entries = [
        note
        for path in folder.glob("*.jsonl")
        for note in json_lines(path)
        if note.get("rank") == rank and "entry" in note
    ]
    os.kill(max(entries, key=lambda note: note["generation"])["pid"], signal.SIGKILL)


def small_with_spare_nodes(folder, spare_nodes, *, nodes=2, world=2, model="plain", options=()):
    return start_nodes(
        folder, JOBS / "small.py", "--out", folder, "--until", UNTIL, "--model", model, nodes=nodes, world=world,
        launchers=range(nodes + spare_nodes), options=["--spare-nodes", spare_nodes, *options],
    )  # fmt: skip


@pytest.mark.parametrize("model", ["rich", pytest.param("plain", marks=pytest.mark.long)])
def test_a_node_whose_ranks_die_again_and_again_gives_them_to_a_spare_node(tmp_path, undisturbed, model):
    nodes = small_with_spare_nodes(tmp_path, 1, model=model, options=["--node-faults", 2])
    try:
        wait_for_steps(tmp_path, 10)
        kill_rank(tmp_path, 2)
        wait_for_event(tmp_path, "verdict")
        wait_for_steps(tmp_path, 30)
        kill_rank(tmp_path, 3)
        job = finish_nodes(nodes)
    finally:
        for node in nodes:
            kill(node)
    assert_same_losses(job, undisturbed(4, model=model, until=UNTIL))
    assert rungs(job) == ["replace", "replace_node"], job.explain()
    assert "node 1 had 2 faults within 600 s: its ranks move to a spare node" in job.events("rung")[1]["because"]
    (moved,) = job.events("node_replaced")
    assert (moved["lost_node"], moved["by_node"], moved["ranks"]) == (1, 2, [2, 3]), job.explain()
    assert_survivors_kept_their_process(job, [2, 2, 3], 4)


@pytest.mark.long
def test_without_a_spare_node_the_processes_of_a_bad_node_are_replaced_and_it_is_said(tmp_path, undisturbed):
    nodes = small_with_spare_nodes(tmp_path, 0, world=1, options=["--node-faults", 1])
    try:
        wait_for_steps(tmp_path, 10)
        kill_rank(tmp_path, 1)
        job = finish_nodes(nodes)
    finally:
        for node in nodes:
            kill(node)
    assert_same_losses(job, undisturbed(2, until=UNTIL))
    assert rungs(job) == ["replace"], job.explain()
    assert "but there is no spare node to take its ranks" in job.events("rung")[0]["because"], job.explain()


@pytest.mark.long
@pytest.mark.parametrize("at_once", [True, False])
def test_two_nodes_are_lost_together_or_one_while_the_other_recovers(tmp_path, undisturbed, at_once):
    nodes = small_with_spare_nodes(tmp_path, 2, nodes=3, world=1)
    try:
        wait_for_steps(tmp_path, 10)
        kill(nodes[1])
        if not at_once:
            wait_for_event(tmp_path, "node_replaced")
        kill(nodes[2])
        job = finish_nodes([nodes[0], nodes[3], nodes[4]])
    finally:
        for node in nodes:
            kill(node)
    assert_same_losses(job, undisturbed(3, until=UNTIL))
    assert_survivors_kept_their_process(job, [1, 2] if at_once else [*changes(job, 1), 2], 3)
    assert {line["lost_node"] for line in job.events("node_replaced")} == {1, 2}, job.explain()
    assert not job.events("restart"), job.explain()


def changes(job, rank):
    """Once for the lost node; whether its first process there got as far as to say so is the machine's to say."""
    return [rank] * (len(set(job.pids(rank))) - 1)
