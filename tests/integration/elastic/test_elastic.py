"""Elastic jobs with real processes: ranks come and go at a step boundary, and the bits stay those of a fixed size."""

import pytest

from elastic_jobs import Elastic, samples_of
from harness import JOBS, finish, start
from several_nodes import assert_nothing_is_left, node_lines


def fixed(folder, until, *options):
    """The same job on one node with two ranks, which nothing disturbs."""
    process, command = start(
        folder, JOBS / "reproducible.py", "--out", folder, "--note-ids", "--until", until, *options, world=2
    )
    job = finish(folder, process, command, limit_s=300)
    assert job.exit_code == 0, job.explain()
    return job


def go_through_some_sizes(job):
    job.shrink_grow_and_lose_a_rank()
    job.lose(1)
    job.wait_for_world(2)
    return job.stop()


@pytest.mark.parametrize(
    ("go_through", "first", "last"),
    [
        (go_through_some_sizes, (2, 1), (4, 2)),
        pytest.param(Elastic.go_through_sizes, (4, 2), (1, 4), marks=pytest.mark.long),
    ],
    ids=["some", "all"],
)
def test_ranks_come_and_go_and_the_bits_stay(tmp_path, go_through, first, last):
    with Elastic(tmp_path / "elastic", "--until", 100000, "--sleep", 0.03, "--note-ids") as job:
        done = go_through(job)
    used = samples_of(done)
    reference = fixed(tmp_path / "fixed", len(used))
    assert used == samples_of(reference)
    for mine, theirs in zip(done.metrics, reference.metrics, strict=True):
        assert (mine["bits"], mine["norm"]) == (theirs["bits"], theirs["norm"]), f"step {mine['step']}"
    # Rank 0 was never disturbed: one process, from the first step to the last.
    (pid,) = {note["pid"] for note in done.notes if "entry" in note and note["rank"] == 0}
    assert pid
    sizes = [(line["from"], line["to"]) for line in done.events("resized")]
    assert sizes[0] == first and sizes[-1] == last, sizes
    printed = "".join(path.read_text() for path in (tmp_path / "elastic").glob("output*.txt"))
    assert "global rank changed" not in printed  # torch's flight recorder, in each process with another rank
    assert_nothing_is_left(str(tmp_path))


@pytest.mark.long
def test_buffers_of_each_rank_begin_with_anothers_where_a_rank_is_new(tmp_path):
    # BatchNorm's statistics differ from rank to rank. 1 rank on one node, then more there and on another one.
    job = ["--model", "rich", "--until", 100000, "--sleep", 0.03]
    with Elastic(tmp_path / "elastic", *job, nodes="1:2", script="small.py") as elastic:
        elastic.start(0)
        elastic.wait_for_world(2)
        elastic.scale(1)
        elastic.wait_for_world(1)
        elastic.start(1)
        elastic.scale(4)
        elastic.wait_for_world(4)
        elastic.kill_rank(3)
        elastic.scale(1)
        elastic.wait_for_world(1)
        elastic.scale(3)
        elastic.wait_for_world(3)
        done = elastic.stop()
    assert [line["step"] for line in done.metrics] == list(range(1, len(done.metrics) + 1))
    for line in done.metrics:
        ids = [sample for name, values in line.items() if name.startswith("ids_") for sample in values]
        assert len(ids) == len(set(ids)) == 16, f"step {line['step']}"


@pytest.mark.long
def test_newcomers_of_a_node_fetch_the_state_once_between_them_and_who_dies_meanwhile_is_replaced(tmp_path):
    # Enough state to share; a node comes as a whole. Rank 2 dies when it is about to fetch: rank 3 waits for its share.
    job = ["--width", 400, "--until", 100000, "--sleep", 0.02]
    faults = ["--ranks-per-replica", 2, "--check", "--inject", "kill:rank=2,step=2,phase=hydrate"]
    with Elastic(tmp_path / "elastic", *job, nodes="1:2", script="small.py", options=faults) as elastic:
        elastic.start(0)
        elastic.wait_for_world(2)
        elastic.start(1)
        elastic.wait_for_event("fault_detected", rank=2)
        elastic.wait_for_world(4)
        formed = elastic.events("formed")[-1]["generation"]
        done = elastic.stop()
    lines = [line for line in node_lines(done.folder, "journal", 1) if line["event"] == "hydrated"]
    lines = {line["rank"]: line for line in lines if line["generation"] == formed}
    assert set(lines) == {2, 3}, done.explain()
    for rank, sibling in ((2, 3), (3, 2)):
        assert lines[rank]["sources"] == [0, 1, sibling], lines
        assert sum(lines[rank]["bytes_from"]) == lines[rank]["bytes"] > 4 << 20, lines
    for part in (0, 1):  # all that came over the network is what one rank has
        assert sum(lines[rank]["bytes_from"][part] for rank in lines) > lines[2]["bytes"] // 4, lines
    assert sum(sum(line["bytes_from"][:2]) for line in lines.values()) == lines[2]["bytes"], lines
    assert not done.events("corruption") and not done.events("restart"), done.explain()
