"""Several nodes without --node-rank: who can listen at the endpoint is node 0, the others get numbers as they come."""

import os
import signal
import subprocess
import time

import pytest

from harness import JOBS, KEEPSTEP, environment, json_lines
from several_nodes import OTHER_TOKEN, TOKEN, Node, as_json, finish_nodes, free_port, kill, wait_for_line

SHOW = 'echo "{\\"rank\\": $RANK, \\"node\\": $GROUP_RANK}"'


@pytest.fixture
def launchers(tmp_path):
    """start(name, ...): a launcher without a number; all end with the test."""
    started = []
    endpoint = f"127.0.0.1:{free_port()}"

    def begin(name, script, *script_args, nodes=2, world=1, options=(), endpoint=endpoint):
        folder = tmp_path / "out"
        folder.mkdir(exist_ok=True)
        command = [
            KEEPSTEP, "run", "--nnodes", nodes, "--nproc-per-node", world, "--rdzv-endpoint", endpoint,
            "--journal", tmp_path / f"journal-{name}", *options, script, *script_args,
        ]  # fmt: skip
        values = {**environment(), "KEEPSTEP_TOKEN": TOKEN}
        with open(folder / f"output.node{name}.txt", "wb") as output:
            process = subprocess.Popen(
                [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                env=values, start_new_session=True,
            )  # fmt: skip
        started.append(Node(name, command, process, folder))
        return started[-1]

    yield begin
    for node in started:
        kill(node)


def journal_of(tmp_path, name, node):
    return json_lines(tmp_path / f"journal-{name}" / ("journal.jsonl" if node == 0 else f"journal.node{node}.jsonl"))


def wait_for_first(tmp_path, **fields):
    """Until the first launcher's journal, node 0's, has a line with these fields."""
    wait_for_line(tmp_path / "journal-first" / "journal.jsonl", **fields)


def test_nodes_that_come_at_once_get_a_number_each(launchers):
    nodes = [launchers(name, "bash", "-c", SHOW, nodes=4, options=["--no-python"]) for name in "abcd"]
    job = finish_nodes(nodes)
    assert job.exit_code == 0, job.explain()
    assert sorted((line["rank"], line["node"]) for line in as_json(job.output)) == [(i, i) for i in range(4)]


def test_a_node_that_comes_while_node_0_is_stopped_gets_its_number_when_it_goes_on(launchers, tmp_path):
    first = launchers("first", "bash", "-c", SHOW, options=["--no-python"])
    wait_for_first(tmp_path, connected_node=0)
    os.kill(first.process.pid, signal.SIGSTOP)
    second = launchers("second", "bash", "-c", SHOW, options=["--no-python"])
    second.wait_for_output("This node tries again")
    os.kill(first.process.pid, signal.SIGCONT)
    job = finish_nodes([first, second])
    assert job.exit_code == 0, job.explain()
    assert as_json(second.output()) == [{"rank": 1, "node": 1}], job.explain()


def test_numbers_are_given_in_the_order_of_coming(launchers, tmp_path):
    first = launchers("first", "bash", "-c", SHOW, nodes=3, options=["--no-python"])
    wait_for_first(tmp_path, connected_node=0)
    second = launchers("second", "bash", "-c", SHOW, nodes=3, options=["--no-python"])
    wait_for_first(tmp_path, connected_node=1)
    third = launchers("third", "bash", "-c", SHOW, nodes=3, options=["--no-python"])
    job = finish_nodes([first, second, third])
    assert job.exit_code == 0, job.explain()
    for number, node in enumerate((first, second, third)):
        assert as_json(node.output()) == [{"rank": number, "node": number}], job.explain()


def test_the_number_of_a_node_that_went_before_the_job_began_is_given_again(launchers, tmp_path):
    first = launchers("first", "bash", "-c", SHOW, nodes=3, options=["--no-python"])
    wait_for_first(tmp_path, connected_node=0)
    gone = launchers("gone", "bash", "-c", SHOW, nodes=3, options=["--no-python"])
    wait_for_first(tmp_path, connected_node=1)
    kill(gone)
    wait_for_first(tmp_path, lost_node=1)
    others = [launchers(name, "bash", "-c", SHOW, nodes=3, options=["--no-python"]) for name in ("b", "c")]
    job = finish_nodes([first, *others])
    assert job.exit_code == 0, job.explain()


def test_one_node_too_many_hears_who_is_there_and_the_job_goes_on(launchers, tmp_path):
    hold = f"until [ -e {tmp_path}/go ]; do sleep 0.05; done"
    first = launchers("first", "bash", "-c", hold, options=["--no-python"])
    wait_for_first(tmp_path, connected_node=0)
    second = launchers("second", "bash", "-c", hold, options=["--no-python"])
    wait_for_first(tmp_path, connected_node=1)
    third = launchers("third", "bash", "-c", hold, options=["--no-python", "--join-timeout", 2])
    assert third.process.wait(60) == 1, third.output()
    assert "all 2 nodes of the job are there: node 0 is" in third.output()
    assert "no place became free within 2 s (--join-timeout)" in third.output()
    (tmp_path / "go").touch()
    assert finish_nodes([first, second]).exit_code == 0


def test_ctrl_c_ends_a_node_that_waits_for_a_place(launchers, tmp_path):
    first = launchers("first", "sleep", "600", options=["--no-python"])
    wait_for_first(tmp_path, connected_node=0)
    launchers("second", "sleep", "600", options=["--no-python"])
    wait_for_first(tmp_path, connected_node=1)
    third = launchers("third", "sleep", "600", options=["--no-python"])
    third.wait_for_output("tries again")
    os.kill(third.process.pid, signal.SIGINT)
    assert third.process.wait(20) == 130, third.output()
    assert first.process.poll() is None


@pytest.mark.long
def test_a_node_that_comes_late_takes_the_place_of_a_lost_one_and_no_step_is_lost(launchers, tmp_path):
    job = [JOBS / "small.py", "--out", tmp_path / "out", "--until", 40, "--sleep", 0.02]
    first = launchers("first", *job)
    wait_for_first(tmp_path, connected_node=0)
    second = launchers("second", *job)
    metrics = tmp_path / "journal-first" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while len(json_lines(metrics)) < 5:
        assert time.monotonic() < deadline, first.output()
        time.sleep(0.02)
    kill(second)
    third = launchers("third", *job)
    done = finish_nodes([first, third])
    assert done.exit_code == 0, done.explain()
    assert [line["step"] for line in json_lines(metrics)] == list(range(1, 41)), done.explain()
    assert journal_of(tmp_path, "third", 1), "it has the number of the one that was lost"


def test_with_another_token_no_number_is_given(launchers, tmp_path, monkeypatch):
    launchers("first", "true", options=["--no-python"])
    wait_for_first(tmp_path, connected_node=0)
    token = tmp_path / "token"
    token.write_text(OTHER_TOKEN)
    token.chmod(0o600)
    stranger = launchers("stranger", "true", options=["--no-python", "--token-file", token])
    assert stranger.process.wait(60) == 1
    assert "does not know the job token of this node" in stranger.output()


def test_an_endpoint_that_is_nobodys_is_named_with_what_was_tried(launchers):
    node = launchers("a", "true", options=["--no-python", "--join-timeout", 1], endpoint="no-such-host.invalid:29400")
    assert node.process.wait(60) == 1
    assert "nobody answers at the endpoint no-such-host.invalid:29400 after 1 s" in node.output()
    assert "cannot be resolved" in node.output()


def test_nodes_that_do_not_come_are_missed_by_number_and_a_loopback_endpoint_is_said(launchers):
    node = launchers("a", "true", nodes=3, options=["--no-python", "--join-timeout", 1])
    assert node.process.wait(60) == 1
    assert "nodes 1, 2 did not join" in node.output()
    assert "That address is this machine's alone" in node.output()
