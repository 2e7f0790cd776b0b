"""run.checkpoint(memory_every_steps=N) of sharded state: copies in memory of every N-th step, and no bit changes."""

import pytest

from fsdp2 import needs_fsdp2
from harness import JOBS, PHASES, finish, start
from several_nodes import assert_nothing_is_left, lose_node_1, start_nodes
from test_sharded import LONG, run_sharded, whole  # noqa: F401

pytestmark = needs_fsdp2

UNTIL = 10
NEVER = 1000  # no save before the last step


def arguments(folder, every, until=UNTIL, kind="fsdp"):
    return ["--out", folder, "--until", until, "--kind", kind, "--durable", folder / "saves", "--every", NEVER,
            "--memory-every", every]  # fmt: skip


def run_every(folder, every, *, world=2, inject=(), kind="fsdp", until=UNTIL):
    injected = [part for text in inject for part in ("--inject", text)]
    process, command = start(
        folder, JOBS / "sharded.py", *arguments(folder, every, until, kind), world=world, options=injected
    )
    return finish(folder, process, command)


def assert_same(job, reference):
    """Losses and norms of all steps, and what ranks hold at the end; steps that were done again had the same bits."""
    assert job.exit_code == 0, job.explain()
    theirs = {line["step"]: (line["loss"], line.get("norm")) for line in reference.metrics}
    assert {line["step"] for line in job.metrics} == theirs.keys(), job.explain()
    for line in job.metrics:
        assert (line["loss"], line.get("norm")) == theirs[line["step"]], f"step {line['step']}{job.explain()}"
    for rank, final in reference.finals().items():
        assert job.finals()[rank]["final"] == final["final"], f"rank {rank}{job.explain()}"
    assert not job.events("restart"), job.explain()


def gone_back_to(job):
    """The version that each recovery went on from, and how many decided steps are done again."""
    return [(line["version"], line.get("redone_steps", 0)) for line in job.events("verdict")]


def test_a_lost_shard_takes_all_back_to_the_newest_step_that_was_copied(tmp_path, whole):  # noqa: F811
    inject = ["kill:rank=1,step=6,phase=backward", "kill:rank=0,step=9,phase=backward"]
    job = run_every(tmp_path, 4, inject=inject)
    assert_same(job, whole(2))
    assert gone_back_to(job) == [(4, 1), (8, 0)], job.explain()


@pytest.mark.long
def test_where_nobody_died_nothing_is_lost(tmp_path, whole):  # noqa: F811
    job = run_every(tmp_path, 4, inject=["exception:rank=1,step=7,phase=forward"])
    assert_same(job, whole(2))
    assert gone_back_to(job) == [(6, 0)], job.explain()


@pytest.mark.long
def test_all_ranks_killed_at_once_go_on_from_the_newest_step_in_the_agents_memory(tmp_path, whole):  # noqa: F811
    job = run_every(tmp_path, 3, inject=[f"kill:rank={rank},step=8,phase=before_vote" for rank in range(2)])
    assert_same(job, whole(2))
    assert gone_back_to(job)[-1][0] == 6, job.explain()


@pytest.mark.long
def test_a_lost_node_costs_at_most_the_steps_between_copies(tmp_path, whole):  # noqa: F811
    every = 5
    script = arguments(tmp_path, every, LONG)
    nodes = start_nodes(
        tmp_path, JOBS / "sharded.py", *script, nodes=2, world=2, launchers=range(3), options=["--spare-nodes", 1]
    )
    job = lose_node_1(nodes, tmp_path, 8)
    assert_same(job, whole(4, until=LONG))
    ((version, redone),) = gone_back_to(job)
    assert version % every == 0 and version > 0 and redone <= every, job.explain()
    assert_nothing_is_left(str(tmp_path))


@pytest.mark.long
@pytest.mark.parametrize("every", [2, 3, 4, 7])
@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_of_fsdp_with_fewer_copies(tmp_path, whole, phase, every):  # noqa: F811
    until = 20
    inject = [f"kill:rank={rank},step={5 + 6 * rank},phase={phase}" for rank in range(2)]
    job = run_every(tmp_path, every, inject=inject, until=until)
    assert_same(job, whole(2, until=until))


def test_what_cannot_be_is_refused_by_name(tmp_path):
    job = run_every(tmp_path / "alike", 4, kind="ddp")
    assert job.exit_code == 1 and "all ranks hold the same state here" in job.output, job.explain()
    job = run_every(tmp_path / "none", 0)
    assert job.exit_code == 1 and "memory_every_steps=0" in job.output, job.explain()
