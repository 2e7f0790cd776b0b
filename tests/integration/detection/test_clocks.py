"""Wall clocks of several nodes that are apart: named with both hosts and the difference; refused on request."""

import socket

import pytest

from harness import JOBS, KEEPSTEP, json_lines
from several_nodes import finish_nodes, free_port, kill, start_node

SHIFTED = KEEPSTEP.resolve().parent / "libkeepstep_shifted_clock.so"


def two_nodes(tmp_path, *options):
    """Node 1's wall clock is 5 s ahead of node 0's."""
    endpoint = f"127.0.0.1:{free_port()}"
    variables = {"LD_PRELOAD": str(SHIFTED), "SHIFT_S": "5"}
    return [
        start_node(
            tmp_path, rank, endpoint, JOBS / "small.py", "--out", tmp_path, "--until", 4, world=1, options=options,
            variables=variables if rank == 1 else None,
        )
        for rank in range(2)
    ]  # fmt: skip


def test_a_node_whose_clock_is_ahead_is_named_with_the_difference_and_takes_part(tmp_path):
    job = finish_nodes(two_nodes(tmp_path))
    assert job.exit_code == 0, job.explain()
    (line,) = job.events("clock")
    assert (line["of_node"], line["ok"], line["limit_s"]) == (1, False, 1), line
    # Half of the round trip is what it cannot know.
    assert abs(line["offset_s"] - 5) <= line["round_trip_s"] / 2 + 0.01, line
    assert line["host"] == line["reference_host"] == socket.gethostname()
    assert "s ahead of that of node 0" in job.output, job.output
    assert len(job.metrics) == 4, job.explain()


def test_a_node_whose_clock_is_ahead_is_refused_on_request(tmp_path):
    nodes = two_nodes(tmp_path, "--clocks-apart", "refuse")
    try:
        job = finish_nodes(nodes)
    finally:
        for node in nodes:
            kill(node)
    assert job.exit_code == 1, job.explain()
    assert "node 1" in job.output and "cannot take part: the wall clock of node 1" in job.output, job.output
    assert not job.events("generation_prepared"), job.explain()
    assert json_lines(tmp_path / "journal" / "metrics.jsonl") == []


@pytest.mark.long
def test_clocks_are_not_compared_where_nobody_wants_it(tmp_path):
    job = finish_nodes(two_nodes(tmp_path, "--clock-limit", "off", "--clocks-apart", "refuse"))
    assert job.exit_code == 0, job.explain()
    assert not job.events("clock"), job.explain()
