"""Several nodes, as a user starts them: one `keepstep run` each. Here on one machine, over loopback."""

import os
import select
import signal
import time
from pathlib import Path

import pytest

from harness import JOBS, PYTHON
from several_nodes import (
    OTHER_TOKEN,
    as_json,
    assert_nothing_is_left,
    finish_nodes,
    free_port,
    kill,
    node_lines,
    start_node,
    start_nodes,
    wait_for_line,
)

SHOW = """
import json, os
names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
         "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"]
print(json.dumps({name: os.environ[name] for name in names}), flush=True)
"""

# Ranks stay until they are told to go, and say so first.
WAIT = 'echo "rank $RANK is here"; exec sleep 600'


@pytest.fixture
def nodes():
    """Launchers that must not outlive the test."""
    started = []
    yield started
    for node in started:
        kill(node)


def test_every_rank_finds_its_place_among_all_nodes(tmp_path):
    job = finish_nodes(start_nodes(tmp_path, PYTHON, "-c", SHOW, options=["--no-python"]))
    assert job.exit_code == 0, job.explain()
    ranks = sorted(as_json(job.output), key=lambda line: int(line["RANK"]))
    assert [(r["RANK"], r["LOCAL_RANK"], r["GROUP_RANK"]) for r in ranks] == [
        ("0", "0", "0"), ("1", "1", "0"), ("2", "0", "1"), ("3", "1", "1"),
    ], job.explain()  # fmt: skip
    for r in ranks:
        assert r["ROLE_RANK"] == r["RANK"]
        assert (r["WORLD_SIZE"], r["ROLE_WORLD_SIZE"], r["LOCAL_WORLD_SIZE"], r["GROUP_WORLD_SIZE"]) == (
            "4", "4", "2", "2",
        ), r  # fmt: skip
        assert r["MASTER_ADDR"] == "127.0.0.1"
    assert len({r["MASTER_PORT"] for r in ranks}) == 1, "all ranks look for the store of rank 0 at one port"


def test_torchruns_options_and_variables_mean_the_same(tmp_path):
    port = free_port()
    script = tmp_path / "show.sh"
    script.write_text('#!/bin/sh\necho "rank $RANK of $WORLD_SIZE"\n')
    script.chmod(0o755)
    started = [
        start_node(tmp_path, rank, "ignored", script, options=[
            "--no-python", "--rdzv-endpoint", f"localhost:{port}", "--nnodes", "2:2", "--rdzv-backend", "c10d",
        ])
        for rank in range(2)
    ]  # fmt: skip
    job = finish_nodes(started)
    assert job.exit_code == 0, job.explain()
    assert sorted(line for line in job.output.splitlines() if line.startswith("rank")) == [
        f"rank {rank} of 4" for rank in range(4)
    ], job.explain()


def test_an_unchanged_torchrun_script_runs_on_two_nodes(tmp_path):
    job = finish_nodes(start_nodes(tmp_path, JOBS / "torchrun_style.py", tmp_path, 5, -1))
    assert job.exit_code == 0, job.explain()
    done = sorted((note["rank"], note["local"], note["world"], note["done"]) for note in job.notes)
    assert done == [(0, 0, 4, 5), (1, 1, 4, 5), (2, 0, 4, 5), (3, 1, 4, 5)], job.explain()
    assert node_lines(tmp_path, "journal", 1), "node 1 has a journal of what it saw"


@pytest.mark.long
def test_a_fault_on_one_node_restarts_an_unchanged_script_on_all(tmp_path):
    job = finish_nodes(start_nodes(tmp_path, JOBS / "torchrun_style.py", tmp_path, 6, 3))
    assert job.exit_code == 0, job.explain()
    assert [note["restarts"] for note in job.notes] == [1, 1, 1, 1], job.explain()
    assert [note["first"] for note in job.notes] == [4, 4, 4, 4], job.explain()


def test_every_launcher_exits_as_the_job_does(tmp_path):
    job = finish_nodes(
        start_nodes(tmp_path, "bash", "-c", "[ $RANK != 3 ] || exit 7; sleep 600",
                    options=["--no-python", "--max-restarts", 0])
    )  # fmt: skip
    assert job.exit_code == 7, job.explain()
    assert "rank 3" in job.output


@pytest.mark.long
def test_a_node_that_comes_while_node_0_is_stopped_joins_when_it_goes_on(tmp_path, nodes):
    endpoint = f"127.0.0.1:{free_port()}"
    nodes.append(start_node(tmp_path, 0, endpoint, "-c", "print('trained')", options=["--no-python", PYTHON]))
    nodes[0].wait_for_output(f"listens at {endpoint}")
    os.kill(nodes[0].process.pid, signal.SIGSTOP)
    nodes.append(start_node(tmp_path, 1, endpoint, "-c", "print('trained')", options=["--no-python", PYTHON]))
    nodes[1].wait_for_output("This node tries again")
    os.kill(nodes[0].process.pid, signal.SIGCONT)
    job = finish_nodes(nodes)
    assert job.exit_code == 0, job.explain()
    assert job.output.count("trained") == 4, job.explain()


@pytest.mark.parametrize("where", [0, 1])
def test_ctrl_c_on_any_node_ends_the_job_on_all(tmp_path, nodes, where):
    mark = f"KEEPSTEP_TEST_MARK={os.getpid()}-{where}"
    nodes += start_nodes(tmp_path, "env", mark, "bash", "-c", WAIT, options=["--no-python"])
    for node in nodes:
        for local in range(2):
            node.wait_for_output(f"rank {2 * node.rank + local} is here")
    os.kill(nodes[where].process.pid, signal.SIGINT)
    job = finish_nodes(nodes, limit_s=30)
    assert job.exit_code == 130, job.explain()
    assert job.output.count("stopped by Interrupt") == 2, "every launcher says why"
    assert_nothing_is_left(mark)


@pytest.mark.long
def test_a_node_that_is_lost_before_the_job_begins_is_not_waited_for_longer_than_said(tmp_path, nodes):
    endpoint = f"127.0.0.1:{free_port()}"
    job = {"options": ["--no-python", "--join-timeout", 15], "nodes": 3, "world": 1}
    nodes += [start_node(tmp_path, rank, endpoint, "true", **job) for rank in (0, 1)]
    wait_for_line(tmp_path / "journal" / "journal.jsonl", fitting_node=1)
    kill(nodes[1])
    nodes.append(start_node(tmp_path, 2, endpoint, "true", **job))
    assert nodes[0].process.wait(30) == 1
    assert "was lost again before the job began" in nodes[0].output(), nodes[0].output()


def wait_until_signals_are_blocked(process, limit_s=60):
    deadline = time.monotonic() + limit_s
    while True:
        status = Path(f"/proc/{process.pid}/status").read_text()
        (blocked,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigBlk:")]
        # While a thread waits for signals the kernel shows them as not blocked.
        waits = "sigtimedwait" in Path(f"/proc/{process.pid}/wchan").read_text()
        if waits or int(blocked, 16) & 1 << (signal.SIGINT - 1):
            return
        assert time.monotonic() < deadline, status
        time.sleep(0.01)


def test_ctrl_c_ends_a_node_that_waits_for_node_0(tmp_path, nodes):
    nodes += start_nodes(tmp_path, "true", launchers=[1], options=["--no-python"])
    # Before that a signal ends it like any program, or, under a shell that started us with `&`, is lost.
    wait_until_signals_are_blocked(nodes[0].process)
    os.kill(nodes[0].process.pid, signal.SIGINT)
    assert nodes[0].process.wait(20) == 130, nodes[0].output()


def test_the_end_of_node_0_ends_the_job_and_is_said(tmp_path, nodes):
    mark = f"KEEPSTEP_TEST_MARK={os.getpid()}-end"
    nodes += start_nodes(tmp_path, "env", mark, "bash", "-c", WAIT, options=["--no-python"])
    for node in nodes:
        node.wait_for_output(f"rank {2 * node.rank + 1} is here")
    os.kill(nodes[0].process.pid, signal.SIGKILL)
    nodes[0].process.wait()
    assert nodes[1].process.wait(60) == 1, nodes[1].output()
    assert "the coordinator (node 0) is gone" in nodes[1].output()


def test_what_the_job_starts_does_not_find_the_token_in_its_environment(tmp_path):
    show = 'echo "the token is ${KEEPSTEP_TOKEN-not here}"'
    job = finish_nodes(start_nodes(tmp_path, "bash", "-c", show, options=["--no-python"], world=1))
    assert job.output.count("the token is not here") == 2, job.explain()


def test_without_a_token_nothing_starts_and_the_way_out_is_printed(tmp_path):
    (node,) = start_nodes(tmp_path, "true", launchers=[0], options=["--no-python"], token=None)
    assert node.process.wait(30) == 2
    assert "no job token" in node.output()
    assert "openssl rand -hex 32 > job.token" in node.output()


def test_a_node_with_another_token_is_refused_and_the_job_goes_on(tmp_path, nodes):
    endpoint = f"127.0.0.1:{free_port()}"
    job = {"options": ["--no-python"]}
    nodes.append(start_node(tmp_path, 0, endpoint, "true", **job))
    stranger = start_node(tmp_path / "stranger", 1, endpoint, "true", token=OTHER_TOKEN, **job)
    nodes.append(stranger)
    assert stranger.process.wait(60) == 1
    assert "does not know the job token of node 1" in stranger.output()
    assert nodes[0].process.poll() is None
    nodes.append(start_node(tmp_path, 1, endpoint, "true", **job))
    assert finish_nodes([nodes[0], nodes[2]]).exit_code == 0


def test_a_second_node_of_the_same_number_is_refused(tmp_path, nodes):
    endpoint = f"127.0.0.1:{free_port()}"
    job = {"options": ["--no-python"], "nodes": 3}
    nodes.append(start_node(tmp_path, 0, endpoint, "true", **job))
    job["options"] = ["--no-python", "--join-timeout", 2]
    nodes.append(start_node(tmp_path, 1, endpoint, "true", **job))
    nodes.append(start_node(tmp_path / "twin", 1, endpoint, "true", **job))
    first_out = wait_for_either(nodes[1:])
    assert first_out.process.returncode == 1
    assert "refused node 1" in first_out.output()
    assert first_out.output().count("tries again for up to 2 s") == 1, first_out.output()
    assert "it stayed connected for 2 s (--join-timeout): give each launcher another --node-rank" in first_out.output()


def test_ctrl_c_ends_a_node_whose_place_is_taken(tmp_path, nodes):
    endpoint = f"127.0.0.1:{free_port()}"
    job = {"options": ["--no-python"], "nodes": 3}
    nodes.append(start_node(tmp_path, 0, endpoint, "true", **job))
    nodes.append(start_node(tmp_path, 1, endpoint, "true", **job))
    wait_for_line(tmp_path / "journal" / "journal.jsonl", connected_node=1)
    twin = start_node(tmp_path / "twin", 1, endpoint, "true", **job)
    nodes.append(twin)
    twin.wait_for_output("tries again")
    os.kill(twin.process.pid, signal.SIGINT)
    assert twin.process.wait(20) == 130, twin.output()


def wait_for_either(nodes):
    """The first of them that ends."""
    ends = {os.pidfd_open(node.process.pid): node for node in nodes}
    try:
        ended, _, _ = select.select(list(ends), [], [], 120)
        assert ended, [node.output() for node in nodes]
        ends[ended[0]].process.wait(60)
        return ends[ended[0]]
    finally:
        for fd in ends:
            os.close(fd)


def test_a_number_beyond_the_nodes_is_refused(tmp_path):
    (node,) = start_nodes(tmp_path, "true", launchers=[2], options=["--no-python"])
    assert node.process.wait(30) == 2
    assert "--node-rank is '2'; give a number from 0 to 1" in node.output()


def test_an_endpoint_where_nobody_answers_is_named_with_how_long_was_tried(tmp_path):
    (node,) = start_nodes(tmp_path, "true", launchers=[1], options=["--no-python", "--join-timeout", 1])
    assert node.process.wait(30) == 1
    assert "nobody answers at the endpoint 127.0.0.1:" in node.output()
    assert "after 1 s" in node.output()
    assert "Connection refused" in node.output()


def test_node_0_must_run_where_the_endpoint_points(tmp_path):
    node = start_node(tmp_path, 0, "192.0.2.1:4711", "true", options=["--no-python"])  # TEST-NET-1: nobody's
    assert node.process.wait(30) == 1
    assert "192.0.2.1, which is no address of this machine" in node.output()


def test_an_endpoint_in_use_is_an_error(tmp_path, nodes):
    endpoint = f"127.0.0.1:{free_port()}"
    nodes.append(start_node(tmp_path, 0, endpoint, "true", options=["--no-python"]))
    # Once somebody joined with the token, the first one listens.
    nodes.append(start_node(tmp_path / "other", 1, endpoint, "true", options=["--no-python"], token=OTHER_TOKEN))
    assert nodes[1].process.wait(60) == 1
    second = start_node(tmp_path / "second", 0, endpoint, "true", options=["--no-python"])
    nodes.append(second)
    assert second.process.wait(30) == 1
    assert "Address already in use" in second.output()


def test_nodes_that_do_not_come_are_named(tmp_path):
    (node,) = start_nodes(tmp_path, "true", nodes=3, launchers=[0], options=["--no-python", "--join-timeout", 1])
    assert node.process.wait(60) == 1
    assert "nodes 1, 2 did not join" in node.output()


def test_a_node_with_other_options_or_another_script_is_refused_with_which_and_why(tmp_path):
    endpoint = f"127.0.0.1:{free_port()}"
    scripts = []
    for node in range(2):
        script = tmp_path / str(node) / "train.py"
        script.parent.mkdir()
        script.write_text(f"print('text {node}')\n")
        scripts.append(script)
    started = [
        start_node(tmp_path, node, endpoint, scripts[node], world=1 + node, options=["--seed", 5]) for node in range(2)
    ]
    job = finish_nodes(started)
    assert job.exit_code == 1, job.explain()
    assert "--nproc-per-node is '2' on node 1" in job.output, job.explain()
    assert "the script is 'train.py with checksum" in job.output, job.explain()
    assert "--seed" not in job.output, job.explain()


@pytest.mark.parametrize("plane", ["plain", pytest.param("tls", marks=pytest.mark.long)])
def test_the_data_plane_of_node_0_holds_for_all(tmp_path, nodes, plane):
    endpoint = f"127.0.0.1:{free_port()}"
    planes = [plane, "plain" if plane == "tls" else "tls"]
    for rank in range(2):
        nodes.append(
            start_node(tmp_path, rank, endpoint, JOBS / "small.py", "--out", tmp_path, "--until", 4, world=1,
                       options=["--data-plane", planes[rank]])
        )  # fmt: skip
    job = finish_nodes(nodes)
    assert job.exit_code == 0 and not job.events("restart"), job.explain()
    assert [line["step"] for line in job.metrics] == [1, 2, 3, 4], job.explain()
