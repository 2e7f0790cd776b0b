"""State of which each rank holds a part: it comes back from copies, or from parity, and no bit changes."""

import itertools
import os
import signal
import time

import pytest
from held import Held

from fsdp2 import needs_fsdp2
from harness import JOBS, PHASES, assert_survivors_kept_their_process, finish, json_lines, read, start
from several_nodes import (
    assert_nothing_is_left,
    finish_nodes,
    kill,
    lose_node_1,
    node_lines,
    start_nodes,
    wait_for_steps,
)
from user_scripts import run_script, training

pytestmark = needs_fsdp2

UNTIL = 10
LONG = 60


def arguments(folder, kind, until, *protection):
    return ["--out", folder, "--until", until, "--kind", kind, *protection]


def run_sharded(folder, *, world=2, kind="fsdp", until=UNTIL, inject=(), spares=0):
    injected = [part for text in inject for part in ("--inject", text)]
    process, command = start(
        folder, JOBS / "sharded.py", *arguments(folder, kind, until), world=world, spares=spares, options=injected
    )
    return finish(folder, process, command)


def start_on_nodes(folder, *, nodes=2, world=1, until=UNTIL, kind="fsdp", spare_nodes=0, inject=(), protection=()):
    injected = [part for text in inject for part in ("--inject", text)]
    return start_nodes(
        folder, JOBS / "sharded.py", *arguments(folder, kind, until, *protection), nodes=nodes, world=world,
        launchers=range(nodes + spare_nodes), options=["--spare-nodes", spare_nodes, *injected],
    )  # fmt: skip


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """The same job without faults, by (world, kind, until); each is run once."""
    known = {}

    def get(world, kind="fsdp", until=UNTIL):
        if (world, kind, until) not in known:
            job = run_sharded(tmp_path_factory.mktemp(f"sharded-{kind}-{world}"), world=world, kind=kind, until=until)
            assert job.exit_code == 0, job.explain()
            known[world, kind, until] = job
        return known[world, kind, until]

    return get


def assert_same(job, reference, *, killed=None, world=None):
    """Every loss, gradient norm and rank's final state bit for bit, each step once."""
    why = job.explain()
    assert job.exit_code == 0, why
    assert [line["step"] for line in job.metrics] == [line["step"] for line in reference.metrics], why
    for mine, theirs in zip(job.metrics, reference.metrics, strict=True):
        assert (mine["loss"], mine.get("norm")) == (theirs["loss"], theirs.get("norm")), f"step {mine['step']}{why}"
    for rank, final in reference.finals().items():
        assert job.finals()[rank]["final"] == final["final"], f"rank {rank}{why}"
    assert not job.events("restart"), why
    if killed is not None:
        assert_survivors_kept_their_process(job, killed, world)


@pytest.mark.long
def test_an_agent_notices_a_death_while_it_makes_memory_for_copies(tmp_path, whole, monkeypatch):
    reference = whole(2)
    held = Held(tmp_path / "held", "keepstep-shard-1")
    with monkeypatch.context() as changed:
        for name, value in held.environment.items():
            changed.setenv(name, value)
        process, command = start(tmp_path, JOBS / "sharded.py", *arguments(tmp_path, "fsdp", UNTIL), world=2)
    try:
        ((agent, _),) = held.wait()
        assert agent == process.pid
        notes = itertools.chain.from_iterable(json_lines(path) for path in tmp_path.glob("*.jsonl"))
        os.kill(next(note["pid"] for note in notes if note.get("rank") == 1 and "entry" in note), signal.SIGKILL)
        deadline = time.monotonic() + 60
        while not read(tmp_path, process, command).events("sealed"):
            assert time.monotonic() < deadline, read(tmp_path, process, command).explain()
            time.sleep(0.02)
    finally:
        held.close()
        job = finish(tmp_path, process, command)
    assert job.exit_code == 0, job.explain()
    assert {rank: note["final"] for rank, note in job.finals().items()} == {
        rank: note["final"] for rank, note in reference.finals().items()
    }, job.explain()


def test_killed_ranks_of_fsdp_go_on_from_their_copies(tmp_path, whole):
    inject = ["kill:rank=1,step=3,phase=backward", "kill:rank=0,step=6,phase=update"]
    job = run_sharded(tmp_path, spares=1, inject=inject)
    assert_same(job, whole(2), killed=[1, 0], world=2)


@pytest.mark.long
def test_a_rank_killed_while_it_takes_a_copy_over(tmp_path, whole):
    inject = ["kill:rank=1,step=4,phase=forward", "kill:rank=1,step=4,phase=hydrate"]
    assert_same(run_sharded(tmp_path, inject=inject), whole(2))


def test_all_ranks_killed_at_once_go_on_from_the_agents_memory(tmp_path, whole):
    job = run_sharded(tmp_path, inject=[f"kill:rank={rank},step=5,phase=before_vote" for rank in range(2)])
    assert_same(job, whole(2))


@pytest.mark.long
def test_an_exception_in_the_middle_of_a_step_of_fsdp_is_redone_in_the_same_processes(tmp_path, whole):
    inject = ["exception:rank=1,step=3,phase=forward", "exception:rank=0,step=6,phase=backward"]
    assert_same(run_sharded(tmp_path, inject=inject), whole(2), killed=[], world=2)


@pytest.mark.long
def test_tensor_parallel_times_data_parallel(tmp_path, whole):
    inject = ["kill:rank=1,step=3,phase=backward", "kill:rank=2,step=6,phase=update"]
    assert_same(run_sharded(tmp_path, world=4, kind="tp", inject=inject), whole(4, "tp"), killed=[1, 2], world=4)


def test_a_collective_between_setup_and_the_loop_is_refused(tmp_path):
    """The process group is there already, because meshes need it; but the state may still be as it was built."""
    lines = [
        "state = run.setup(lambda: build(run), sharded=True)",
        "state.model.weight.full_tensor()",
        "for step in run.steps(Data(), global_batch=4, micro_batch=2, last_step=3): pass",
    ]
    body = (
        "from torch.distributed.fsdp import fully_shard\n"
        "def build(run):\n"
        "    model = torch.nn.Linear(4, 4)\n"
        "    mesh = torch.distributed.device_mesh.init_device_mesh('cpu', (run.world_size,))\n"
        "    fully_shard(model, mesh=mesh)\n"
        "    return keepstep.State(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1e-3))\n"
    ) + training(*lines)
    job = run_script(tmp_path, body)
    assert job.exit_code == 1, job.explain()
    assert "all_gather_into_tensor between run.setup and the loop" in job.output, job.explain()


@pytest.mark.parametrize("kind", ["zero", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("pp", "pp-ddp"))])
def test_pipeline_stages_and_zero_1(tmp_path, whole, kind):
    world = 2 if kind == "zero" else 4
    phase = "update" if kind == "zero" else "backward"
    job = run_sharded(tmp_path, world=world, kind=kind, inject=[f"kill:rank=1,step=4,phase={phase}"])
    assert_same(job, whole(world, kind), killed=[1], world=world)


def test_a_killed_rank_whose_node_has_no_other(tmp_path, whole):
    job = finish_nodes(start_on_nodes(tmp_path, inject=["kill:rank=1,step=4,phase=allreduce"]))
    assert_same(job, whole(2), killed=[1], world=2)


@pytest.mark.long
def test_a_lost_node_goes_on_elsewhere_from_the_copies_of_its_neighbour(tmp_path, whole):
    nodes = start_on_nodes(tmp_path, world=2, until=LONG, spare_nodes=1)
    job = lose_node_1(nodes, tmp_path, 8)
    assert_same(job, whole(4, until=LONG), killed=[2, 3], world=4)
    assert job.events("node_replaced"), job.explain()
    assert_nothing_is_left(str(tmp_path))


@pytest.mark.long
@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_and_rank_of_fsdp(tmp_path, whole, phase, world):
    inject = [f"kill:rank={rank},step={2 + 2 * rank},phase={phase}" for rank in range(world)]
    job = run_sharded(tmp_path, world=world, inject=inject)
    assert_same(job, whole(world), killed=list(range(world)), world=world)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["tp", "hsdp", "pp", "pp-ddp", "zero"])
@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_of_other_meshes(tmp_path, whole, phase, kind):
    inject = [f"kill:rank={rank},step={2 + 2 * rank},phase={phase}" for rank in range(4)]
    job = run_sharded(tmp_path, world=4, kind=kind, inject=inject)
    assert_same(job, whole(4, kind), killed=list(range(4)), world=4)


@pytest.mark.long
@pytest.mark.parametrize(("nodes", "world"), [(2, 2), (4, 1)])
@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_and_rank_across_nodes(tmp_path, whole, phase, nodes, world):
    inject = [f"kill:rank={rank},step={2 + 2 * rank},phase={phase}" for rank in range(4)]
    job = finish_nodes(start_on_nodes(tmp_path, nodes=nodes, world=world, inject=inject))
    assert_same(job, whole(4), killed=list(range(4)), world=4)


@pytest.mark.long
def test_two_nodes_lost_at_once_with_three_copies(tmp_path, whole):
    nodes = start_on_nodes(tmp_path, nodes=4, until=LONG, spare_nodes=2, protection=["--copies", 3])
    job = finish_without(nodes, 1, 2)
    assert_same(job, whole(4, until=LONG), killed=[1, 2], world=4)


def finish_without(nodes, *lost):
    """The job whose nodes `lost` are killed in its middle, all at once."""
    try:
        wait_for_steps(nodes[0].folder, 8)
        for number in lost:
            os.killpg(nodes[number].process.pid, signal.SIGKILL)
        for number in lost:
            nodes[number].process.wait()
        return finish_nodes([node for number, node in enumerate(nodes) if number not in lost])
    finally:
        for node in nodes:
            kill(node)


def told(folder, event, node):
    return [line for line in node_lines(folder, "journal", node) if line["event"] == event]


def lose_node_1_when_it_waits(nodes, folder):
    """Its rank notes that it waits to be killed."""

    def waits():
        return any("waiting" in line for path in folder.glob("*.jsonl") for line in json_lines(path))

    try:
        nodes[0].wait_for(waits, "note of the rank that waits to be killed")
        kill(nodes[1])
        return finish_nodes([nodes[0], *nodes[2:]])
    finally:
        for node in nodes:
            kill(node)


def start_with_parity(folder, parity, **how):
    return start_on_nodes(folder, nodes=4, world=1, protection=["--parity", parity], **how)


@pytest.mark.long
def test_a_lost_node_goes_on_elsewhere_from_parity(tmp_path, whole):
    nodes = start_with_parity(tmp_path, "3+1", until=LONG, spare_nodes=1)
    job = finish_without(nodes, 2)
    assert_same(job, whole(4, until=LONG), killed=[2], world=4)
    (rebuilt,) = told(tmp_path, "shard_rebuilt", node=4)
    assert rebuilt["rank"] == 2, job.explain()
    assert "made again of the shards of ranks 0 and parity 0 of ranks 0, 2" in rebuilt["because"], job.explain()
    assert_nothing_is_left(str(tmp_path))


@pytest.mark.long
@pytest.mark.parametrize("lost", list(itertools.combinations(range(1, 4), 2)), ids=str)
def test_two_nodes_lost_at_once_with_two_parity_blocks(tmp_path, whole, lost):
    nodes = start_with_parity(tmp_path, "2+2", until=LONG, spare_nodes=2)
    assert_same(finish_without(nodes, *lost), whole(4, until=LONG), killed=list(lost), world=4)


def test_a_corrupt_copy_is_taken_from_another_node(tmp_path, whole):
    nodes = start_on_nodes(
        tmp_path, inject=["kill:rank=1,step=4,phase=forward"], protection=["--corrupt-copy", 1, 4, 1]
    )
    job = finish_nodes(nodes)
    assert_same(job, whole(2), killed=[1], world=2)
    (corrupt,) = told(tmp_path, "corrupt_copy", node=1)
    assert "the copy of the shard of rank 1 at version 3 is corrupt" in corrupt["because"]


def test_a_corrupt_copy_that_is_the_only_one_takes_the_job_back_a_step(tmp_path, whole):
    process, command = start(
        tmp_path, JOBS / "sharded.py", *arguments(tmp_path, "fsdp", UNTIL, "--corrupt-copy", 1, 4, 1), world=2,
        options=["--inject", "kill:rank=1,step=4,phase=forward"],
    )  # fmt: skip
    job = finish(tmp_path, process, command)
    assert len(job.events("corrupt_copy")) == 1, job.explain()
    assert [line["step"] for line in job.metrics[:4]] == [1, 2, 3, 4], job.explain()
    assert_same(job, whole(2))


@pytest.mark.long
def test_a_corrupt_copy_for_a_rank_on_another_node_is_passed_over(tmp_path, whole):
    nodes = start_on_nodes(
        tmp_path, nodes=4, until=LONG, spare_nodes=1, protection=["--copies", 3, "--corrupt-copy", 2, 6, 1]
    )
    job = lose_node_1_when_it_waits(nodes, tmp_path)
    (corrupt,) = told(tmp_path, "corrupt_copy", node=2)
    assert "the copy of the shard of rank 1 at version 5 is corrupt" in corrupt["because"]
    assert_same(job, whole(4, until=LONG), killed=[1], world=4)


@pytest.mark.long
def test_a_corrupt_parity_block_is_not_used(tmp_path, whole):
    # Ranks 1 and 3 are a group; its first block lies on node 2.
    nodes = start_on_nodes(
        tmp_path, nodes=4, until=LONG, spare_nodes=1, protection=["--parity", "2+2", "--corrupt", 2, 6, 1]
    )
    job = lose_node_1_when_it_waits(nodes, tmp_path)
    (corrupt,) = told(tmp_path, "corrupt_copy", node=2)
    assert "the copy of parity 0 of the shards of ranks 1, 3 at version 5 is corrupt" in corrupt["because"]
    (rebuilt,) = told(tmp_path, "shard_rebuilt", node=4)
    assert "made again of the shards of ranks 3 and parity 1 of ranks 1, 3" in rebuilt["because"], job.explain()
    assert_same(job, whole(4, until=LONG), killed=[1], world=4)


@pytest.mark.long
def test_nodes_lost_one_after_the_other_with_parity(tmp_path, whole):
    # What the first took of the parity is there again when the second goes.
    nodes = start_with_parity(tmp_path, "3+1", until=2 * LONG, spare_nodes=2)
    try:
        for lost, steps in ((1, 8), (3, 60)):
            wait_for_steps(tmp_path, steps)
            kill(nodes[lost])
        job = finish_nodes([nodes[0], nodes[2], *nodes[4:]])
    finally:
        for node in nodes:
            kill(node)
    assert_same(job, whole(4, until=2 * LONG), killed=[1, 3], world=4)


@pytest.mark.long
@pytest.mark.parametrize("parity", ["2+2", "3+1"])
@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_and_rank_with_parity(tmp_path, whole, phase, parity):
    inject = [f"kill:rank={rank},step={2 + 2 * rank},phase={phase}" for rank in range(4)]
    job = finish_nodes(start_with_parity(tmp_path, parity, inject=inject))
    assert_same(job, whole(4), killed=list(range(4)), world=4)


@pytest.mark.long
@pytest.mark.parametrize("parity", ["2+2", "3+1"])
def test_all_ranks_killed_at_once_with_parity(tmp_path, whole, parity):
    inject = [f"kill:rank={rank},step=5,phase=before_vote" for rank in range(4)]
    assert_same(finish_nodes(start_with_parity(tmp_path, parity, inject=inject)), whole(4))


@pytest.mark.long
def test_more_parity_than_nodes_becomes_what_they_can(tmp_path, whole):
    nodes = start_with_parity(tmp_path, "6+2", until=LONG, spare_nodes=2)
    job = finish_without(nodes, 1, 3)
    assert "parity=6+2 needs 8 nodes that do not fail together; the job has 4 nodes" in job.output, job.explain()
    assert_same(job, whole(4, until=LONG), killed=[1, 3], world=4)


# Two versions each, and as much again for every copy more; parity is a part of that. A tenth for texts and whole pages.
@pytest.mark.long
@pytest.mark.parametrize(
    ("protection", "versions"),
    [(["--copies", 2], 4), (["--copies", 3], 6), (["--parity", "2+2"], 4), (["--parity", "3+1"], 3)],
    ids=str,
)
def test_memory_for_each_byte_of_state(tmp_path, protection, versions):
    job = finish_nodes(start_on_nodes(tmp_path, nodes=4, protection=[*protection, "--width", 512]))
    assert job.exit_code == 0, job.explain()
    finals = job.finals().values()
    state = sum(final["bytes"] for final in finals)
    kept = sum(sum(final["vaults"].values()) for final in finals)
    print(f"{' '.join(map(str, protection))}: {kept / state:.3f} bytes for each of {state}")
    assert versions <= kept / state <= 1.1 * versions, job.explain()


def test_parity_in_an_elastic_job_is_refused(tmp_path):
    job = ["--out", tmp_path, "--until", UNTIL, "--parity", "2+1"]
    process, command = start(tmp_path, JOBS / "sharded.py", *job, world=2, options=["--min-replicas", 1])
    job = finish(tmp_path, process, command)
    assert job.exit_code == 1
    assert "recoverable(redundancy=Parity(...)): this job is elastic" in job.output, job.explain()
    assert not json_lines(tmp_path / "journal" / "metrics.jsonl")
