"""`keepstep.data.cached` in jobs of several nodes: every node loads the same order for itself, and ranks slice it."""

import pytest

from harness import JOBS, assert_survivors_kept_their_process, samples
from several_nodes import assert_nothing_is_left, finish_nodes, lose_node_1, node_lines, start_nodes
from test_cached_batches import GLOBAL_BATCH, UNTIL, noise, run_cached

SCRIPT = JOBS / "cached_batches.py"
NODES, WORLD = 2, 2
LONG = 60  # steps of a job in which a node is killed


@pytest.fixture(scope="session")
def on_one_node(tmp_path_factory):
    """The undisturbed job with as many ranks on one node, by number of steps."""
    done = {}

    def run(until):
        if until not in done:
            job = run_cached(tmp_path_factory.mktemp("cached-one-node"), world=NODES * WORLD, until=until)
            assert job.exit_code == 0, job.explain()
            done[until] = job
        return done[until]

    return run


def start_cached(folder, *extra, inject=(), until=UNTIL, options=(), **how):
    injected = [part for text in inject for part in ("--inject", text)]
    return start_nodes(
        folder, SCRIPT, "--out", folder, "--until", until, *extra, nodes=NODES, world=WORLD,
        options=[*injected, *options], **how,
    )  # fmt: skip


def assert_same(job, reference, until=UNTIL):
    """Each step once, with the losses and the weights of `reference` to the last bit."""
    assert job.exit_code == 0, job.explain()
    assert [line["step"] for line in job.metrics] == list(range(1, until + 1)), job.explain()
    assert [line["loss"] for line in job.metrics] == [line["loss"] for line in reference.metrics], job.explain()
    finals = {rank: note["final"] for rank, note in reference.finals().items()}
    assert {rank: note["final"] for rank, note in job.finals().items()} == finals, job.explain()


def loaders(job, node):
    """Processes that loaded on `node`."""
    lines = job.journal if node == 0 else node_lines(job.folder, "journal", node)
    return [line["pid"] for line in lines if line["event"] == "loader_started"]


def assert_each_rank_had_its_slice(job, reference):
    """Whatever try of a step it was: the one of `reference`."""
    used = samples(reference)
    tries = [note for note in job.notes if "ids" in note]
    share = GLOBAL_BATCH // (NODES * WORLD)
    for note in tries:
        begin = note["rank"] * share
        assert note["ids"] == used[note["step"] - 1][begin : begin + share], (note, job.explain())
    assert {(note["rank"], note["step"]) for note in tries} >= {
        (rank, line["step"]) for rank in range(NODES * WORLD) for line in reference.metrics
    }, job.explain()


@pytest.mark.long
def test_each_nodes_ring_has_the_same_order_and_ranks_slice_it(on_one_node, tmp_path):
    job = finish_nodes(start_cached(tmp_path))
    reference = on_one_node(UNTIL)
    assert_same(job, reference)
    assert samples(job) == samples(reference), job.explain()
    assert_each_rank_had_its_slice(job, reference)
    assert [len(loaders(job, node)) for node in range(NODES)] == [1, 1], job.explain()


@pytest.mark.long
@pytest.mark.parametrize("rank", [2, 1])
def test_a_killed_rank_of_any_node_repeats_and_skips_nothing(on_one_node, tmp_path, rank):
    job = finish_nodes(start_cached(tmp_path, inject=[f"kill:rank={rank},step=5,phase=backward"]))
    assert_same(job, on_one_node(UNTIL))
    assert samples(job) == samples(on_one_node(UNTIL)) and noise(job) == noise(on_one_node(UNTIL)), job.explain()
    assert_each_rank_had_its_slice(job, on_one_node(UNTIL))
    assert [len(loaders(job, node)) for node in range(NODES)] == [1, 1], "loaders outlive ranks" + job.explain()
    first = min((n for n in job.notes if n.get("entry") == "replacement"), key=lambda n: n["step"])
    assert (first["rank"], first["step"], first["waits"]) == (rank, 5, 0), "its batch was there" + job.explain()


@pytest.mark.long
def test_killed_loaders_of_two_nodes_and_a_killed_rank_lose_nothing(on_one_node, tmp_path):
    """A sample kills the first of the loaders that comes to it; steps kill the one of the rank that comes first."""
    job = finish_nodes(
        start_cached(
            tmp_path, "--kill-loading", 5, 33, "--kill-loader", 3, 4, 8,
            inject=["kill:rank=3,step=7,phase=after_vote", "kill:rank=0,step=9,phase=before_vote"],
        )
    )  # fmt: skip
    assert_same(job, on_one_node(UNTIL))
    assert samples(job) == samples(on_one_node(UNTIL)) and noise(job) == noise(on_one_node(UNTIL)), job.explain()
    assert_each_rank_had_its_slice(job, on_one_node(UNTIL))
    assert sum(len(loaders(job, node)) for node in range(NODES)) > NODES, job.explain()


def test_a_node_that_takes_the_place_of_a_lost_one_loads_on_at_the_jobs_position(on_one_node, tmp_path):
    nodes = start_cached(tmp_path, until=LONG, launchers=[0, 1, 2], options=["--spare-nodes", 1])
    job = lose_node_1(nodes, tmp_path, 10)
    reference = on_one_node(LONG)
    assert_same(job, reference, LONG)
    assert_each_rank_had_its_slice(job, reference)
    assert_survivors_kept_their_process(job, [2, 3], 4)
    (opened,) = [line for line in node_lines(tmp_path, "journal", 2) if line["event"] == "ring_opened"]
    assert opened["batch"] > 0, "not from the first batch on"
    assert len(loaders(job, 0)) == 1, job.explain()
    assert_nothing_is_left(str(tmp_path))
