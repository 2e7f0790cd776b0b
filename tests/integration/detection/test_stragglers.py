"""A rank that computes longer than the others is named, and nobody else is."""

import json
import signal
import subprocess
import time

import pytest

from harness import JOBS, KEEPSTEP, finish, json_lines, run_small, start
from several_nodes import run_small_on_nodes

ENDLESS = 1_000_000


def wait_for(found, process, limit_s=120):
    """What `found` returns, once it returns something."""
    deadline = time.monotonic() + limit_s
    while not (result := found()):
        assert process.poll() is None, "the job ended"
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.05)
    return result


def stragglers(folder):
    return [line for line in json_lines(folder / "journal" / "journal.jsonl") if line["event"] == "straggler"]


def test_a_slow_rank_is_named_everywhere_and_no_more_once_it_keeps_up(tmp_path):
    fault = "slow:rank=1,step=3,seconds=0.12,times=60"
    process, command = start(
        tmp_path, JOBS / "small.py", "--out", tmp_path, "--until", ENDLESS, options=["--inject", fault]
    )
    try:
        (named,) = wait_for(lambda: stragglers(tmp_path), process)
        listed = subprocess.run([KEEPSTEP, "jobs", "--json"], capture_output=True, text=True, check=True).stdout
        (job,) = [each for each in map(json.loads, listed.splitlines()) if each.get("pid") == process.pid]
        wait_for(lambda: len(stragglers(tmp_path)) > 1, process)
    finally:
        process.send_signal(signal.SIGTERM)
    ended = finish(tmp_path, process, command)
    assert (named["rank"], named["slow"], named["slow_node"]) == (1, True, 0), named
    assert named["computed_s"] > named["others_s"] and 0.1 < named["share"] <= 1, named
    assert [each["rank"] for each in job["stragglers"]] == [1] and "rank 1 slow" in job["note"], job
    lines = stragglers(tmp_path)
    assert [(line["rank"], line["slow"]) for line in lines] == [(1, True), (1, False)], ended.explain()
    assert "rank 1 on node 0" in ended.output and "keeps up again" in ended.output, ended.output
    report = subprocess.run(
        [KEEPSTEP, "report", tmp_path / "journal", "--json"], capture_output=True, text=True, check=True
    ).stdout
    (reported,) = json.loads(report)["stragglers"]
    assert reported["rank"] == 1 and reported["lost_s"] > 0, reported


@pytest.mark.long
@pytest.mark.parametrize("extra", [(), ("--by-hand",)], ids=["replicate", "ddp"])
def test_a_slow_rank_of_another_node_is_named(tmp_path, extra):
    fault = "slow:rank=1,step=3,seconds=0.2"
    job = run_small_on_nodes(tmp_path, nodes=2, world=1, inject=[fault], until=60, extra=extra)
    assert job.exit_code == 0, job.explain()
    (line,) = job.events("straggler")
    assert (line["rank"], line["slow_node"], line["slow"]) == (1, 1, True), job.explain()


@pytest.mark.long
@pytest.mark.parametrize("extra", [(), ("--by-hand",)], ids=["replicate", "ddp"])
def test_even_ranks_name_nobody(tmp_path, extra):
    job = run_small(tmp_path, world=4, until=400, extra=extra)
    assert job.exit_code == 0, job.explain()
    assert job.events("straggler") == [], job.explain()
