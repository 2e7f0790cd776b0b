"""Nodes whose network fails, each in a namespace of its own: what is broken is named, and no step or bit is lost."""

import re

import pytest

from harness import JOBS, assert_same_history, assert_survivors_kept_their_process, json_lines
from network import events, network, why_not
from several_nodes import finish_nodes, kill, wait_for_steps
from test_kill_matrix import check, kills
from test_recovery_across_nodes import UNTIL, assert_same_losses

REASON = why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))

STEPS = 40  # of jobs whose nodes all stay; slow enough that a fault falls in the middle


class Cluster:
    """A network, and the launchers on it."""

    def __init__(self, net, folder):
        self.net, self.folder, self.launchers = net, folder, []

    def start(self, *extra, nodes=2, world=1, spare_nodes=0, until=STEPS, options=()):
        for rank in range(nodes + spare_nodes):
            self.launchers.append(
                self.net.start(
                    self.folder, rank, JOBS / "small.py", "--out", self.folder, "--until", until, *extra,
                    nodes=nodes, world=world, options=["--spare-nodes", spare_nodes, *options],
                )
            )  # fmt: skip

    def finish(self, *ranks):
        return finish_nodes([self.launchers[rank] for rank in ranks] if ranks else self.launchers)

    def wait_for(self, event, count=1, limit_s=90):
        """Until node 0's journal has `count` of these events."""
        self.launchers[0].wait_for(lambda: len(events(self.folder, event)) >= count, f"{count} x {event}", limit_s)


@pytest.fixture
def cluster(tmp_path):
    made = []

    def make(nodes):
        context = network(nodes)
        made.append((context, Cluster(context.__enter__(), tmp_path)))
        return made[-1][1]

    yield make
    for context, cluster in made:
        for launcher in cluster.launchers:
            kill(launcher)
        context.__exit__(None, None, None)


def assert_link_named(job, these, those):
    """Every fault is the link between one of `these` ranks and one of `those`; nobody was taken for hung."""
    assert not events(job.folder, "hang"), job.explain()
    faults = job.events("fault_detected")
    assert faults and {fault["kind"] for fault in faults} == {"link"}, job.explain()
    ends = {
        frozenset(map(int, pair))
        for fault in faults
        for pair in re.findall(r"the link between rank (\d+) and rank (\d+) broke", fault["because"])
    }
    assert ends and ends <= {frozenset((a, b)) for a in these for b in those}, f"{ends}{job.explain()}"


# ---- processes and nodes are killed


@pytest.mark.parametrize(
    ("nodes", "world", "phase"),
    [(2, 1, "allreduce"),
     *(pytest.param(*shape, phase, marks=pytest.mark.long) for shape in ((2, 2), (4, 1))
       for phase in ("backward", "allreduce", "after_vote", "update"))],
)  # fmt: skip
def test_every_rank_is_killed_and_replaced(cluster, undisturbed, nodes, world, phase):
    ranks = nodes * world
    job = cluster(nodes)
    inject = [part for text in kills(phase, ranks) for part in ("--inject", text)]
    job.start(nodes=nodes, world=world, until=12, options=["--spares", 1, *inject])
    check(job.finish(), undisturbed(ranks), ranks, list(range(ranks)))


@pytest.mark.long
@pytest.mark.parametrize("world", [1, 2])
def test_a_killed_node_gives_its_ranks_to_a_spare_node(cluster, undisturbed, world):
    job = cluster(3)
    job.start("--model", "rich", world=world, spare_nodes=1, until=UNTIL)
    wait_for_steps(job.folder, 10)
    kill(job.launchers[1])
    done = job.finish(0, 2)
    assert_same_losses(done, undisturbed(2 * world, model="rich", until=UNTIL))
    assert_survivors_kept_their_process(done, list(range(world, 2 * world)), 2 * world)


@pytest.mark.long
@pytest.mark.parametrize("together", [True, False])
def test_two_killed_nodes_give_their_ranks_to_two_spare_nodes(cluster, undisturbed, together):
    job = cluster(5)
    job.start(nodes=3, spare_nodes=2, until=UNTIL)
    wait_for_steps(job.folder, 10)
    kill(job.launchers[1])
    if not together:
        job.wait_for("sealed")  # the first one's recovery is under way
    kill(job.launchers[2])
    done = job.finish(0, 3, 4)
    assert_same_losses(done, undisturbed(3, until=UNTIL))
    assert_survivors_kept_their_process(done, [1, 2], 3)
    assert not done.events("restart"), done.explain()


@pytest.mark.long
def test_an_unplugged_node_is_lost_and_ends_by_itself(cluster, undisturbed):
    job = cluster(3)
    job.start("--sleep", 0.05, world=2, spare_nodes=1, until=UNTIL)
    wait_for_steps(job.folder, 10)
    job.net.unplug(1)
    done = job.finish(0, 2)
    assert_same_losses(done, undisturbed(4, until=UNTIL))
    assert_survivors_kept_their_process(done, [2, 3], 4)
    assert not events(done.folder, "hang"), done.explain()
    (moved,) = done.events("node_replaced")
    assert (moved["lost_node"], moved["by_node"]) == (1, 2), done.explain()
    assert job.launchers[1].process.wait(60) == 1, job.launchers[1].output()
    assert "the coordinator (node 0) is gone" in job.launchers[1].output()


# ---- links


@pytest.mark.long
def test_a_link_that_falls_silent_for_a_while_is_named_and_costs_nobody_its_process(cluster, undisturbed):
    job = cluster(3)
    job.start("--sleep", 0.05, nodes=3)
    wait_for_steps(job.folder, 10)
    job.net.silence(1, 2)
    job.wait_for("fault_detected")
    job.net.heal()
    done = job.finish()
    assert_link_named(done, [1], [2])
    assert_same_history(done, undisturbed(3, until=STEPS), STEPS)
    assert_survivors_kept_their_process(done, [], 3)
    assert {line["rung"] for line in done.events("rung")} == {"redo"}, done.explain()


@pytest.mark.long
@pytest.mark.parametrize("world", [1, 2])
def test_a_silent_link_between_ranks_alone_is_named_although_both_nodes_reach_the_coordinator(
    cluster, undisturbed, world
):
    job = cluster(2)
    # A limit far below what it takes to tell a silent link: nobody may be named meanwhile.
    job.start("--sleep", 0.05, world=world, options=["--hang-timeout", 3])
    wait_for_steps(job.folder, 10)
    ports = {node: job.net.rank_ports(node) for node in (0, 1)}
    assert [len(at) for at in ports.values()] == [world, world], ports
    job.net.silence(0, 1, ports)
    job.wait_for("fault_detected")
    job.net.heal()
    done = job.finish()
    assert_link_named(done, range(world), range(world, 2 * world))
    assert_same_history(done, undisturbed(2 * world, until=STEPS), STEPS)
    assert_survivors_kept_their_process(done, [], 2 * world)


@pytest.mark.long
def test_a_link_that_stays_silent_costs_one_of_its_nodes_the_ranks(cluster, undisturbed):
    job = cluster(4)
    job.start("--sleep", 0.05, nodes=3, spare_nodes=1)
    wait_for_steps(job.folder, 10)
    job.net.silence(1, 2)
    done = job.finish()
    assert_link_named(done, [1], [2])
    assert_same_history(done, undisturbed(3, until=STEPS), STEPS)
    (moved,) = done.events("node_replaced")
    assert moved["lost_node"] in (1, 2) and moved["by_node"] == 3, done.explain()
    assert_survivors_kept_their_process(done, moved["ranks"], 3)


@pytest.mark.long
def test_a_slow_link_is_no_fault_however_long_one_collective_takes(cluster, undisturbed):
    job = cluster(2)
    wide = ["--width", 400]  # 1.3 MB of gradients
    job.start("--sleep", 0.05, *wide)
    wait_for_steps(job.folder, 10)
    job.net.limit(1, "200kbit")
    before = len(json_lines(job.folder / "journal" / "metrics.jsonl"))
    wait_for_steps(job.folder, before + 2, limit_s=300)  # nearly a minute for a sum that takes a millisecond else
    job.net.limit(1, None)
    done = job.finish()
    assert not done.events("fault_detected") and not events(done.folder, "hang"), done.explain()
    assert_same_history(done, undisturbed(2, until=STEPS, extra=tuple(wide)), STEPS)


@pytest.mark.long
def test_a_far_link_is_no_fault(cluster, undisturbed):
    job = cluster(2)
    if (reason := job.net.why_no_delay()) is not None:
        pytest.skip(reason)
    for node in (0, 1):
        job.net.delay(node, 40)
    job.start(until=12)
    done = job.finish()
    assert not done.events("fault_detected") and not events(done.folder, "hang"), done.explain()
    assert_same_history(done, undisturbed(2), 12)
