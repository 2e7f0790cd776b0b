"""`keepstep scale`: the size of a running job, shown and changed."""

import json
import os
import socketserver
import threading

import pytest

from harness import JOBS, LIMIT_S, json_lines
from running_jobs import command, refused
from several_nodes import OTHER_TOKEN, TOKEN, free_port, kill, start_node

# A rank is a replica, and nothing but the user changes the size while a test looks.
PARTS = ["--ranks-per-replica", "1", "--min-replicas", "1", "--scaling-timeout", "86400"]


def size_of(job):
    return json.loads(command("scale", job.name, "--json").stdout)


def test_a_job_of_a_fixed_size_says_that_it_has_one(running):
    job = running("fixed", world=1)
    job.wait_for_steps()
    assert "is not elastic" in refused("scale", job.name)
    assert "is not elastic" in refused("scale", job.name, "--to", 2)
    assert job.journal("scale_requested") == []
    job.stop()


def test_mistakes_are_listed_at_once_and_nothing_is_asked():
    done = command("scale", "--to", "many", "--set", "minReplica=1", "--policy", "/no/such/file")
    assert done.returncode == 2, done
    for words in ("--to is 'many'", "did you mean minReplicas?", "cannot be read"):
        assert words in done.stderr, done.stderr
    done = command("scale", "node-a:", "--to", "many")
    assert done.returncode == 2, done
    for words in ("--to is 'many'", "'node-a:' is no folder and no HOST:PORT", "no job token"):
        assert words in done.stderr, done.stderr
    assert "no job 'node-a' (a job's name, its journal's folder, its launcher's pid, or HOST:PORT)" in refused(
        "scale", "node-a", "--to", 2
    )
    assert "--min-change-interval" in command("scale", "--help").stdout


def test_a_job_shows_its_size_and_refuses_what_its_policy_or_its_nodes_do_not_allow(running):
    job = running("shown", world=2, options=PARTS)
    job.wait_for_steps()
    shown = command("scale", job.name).stdout
    assert f"{job.name}: 2 replicas of 1 rank, as many as the policy finds; step " in shown, shown
    assert "sizes    1 to 2: 1, 2" in shown and "0 (" in shown and "2 ranks" in shown, shown
    assert " s ago: elastic_start: " in shown, shown
    assert "2/1..2 replicas" in command("jobs").stdout
    for words, why in {
        ("--to", 3): "more than maxReplicas (2): ask for 2",
        ("--set", "maxReplicas=3"): "maxReplicas 3 is more than 1 node with 2 ranks each can hold",
        ("--set", "backoffFactor=3", "--set", "replicaIncrementStep=5"): "nothing was changed: replicaIncrementStep 5",
    }.items():
        assert why in refused("scale", job.name, *words), words
    assert job.journal("policy_changed") == job.journal("scale_requested") == job.journal("refused") == []
    job.stop()


def test_the_policy_of_a_running_job_is_changed_by_values_and_by_a_file(running, tmp_path):
    job = running("changed", world=2, options=PARTS)
    job.wait_for_steps()
    done = command("scale", job.name, "--set", "minChangeIntervalInSeconds=5", "--set", "backoffFactor=3")
    assert "minChangeIntervalInSeconds 5" in done.stdout, done
    policy = tmp_path / "policy.yaml"
    policy.write_text("elasticPolicy:\n  minReplicas: 2\n  gracefulShutdownTimeoutInSeconds: 7\n")
    assert command("scale", job.name, "--policy", policy).returncode == 0
    job.wait_for_event("policy_changed", 2)
    now = size_of(job)
    assert now["min"] == 2 and now["sizes"] == [2]
    assert now["policy"]["gracefulShutdownTimeoutInSeconds"] == "7", now
    assert now["policy"]["minChangeIntervalInSeconds"] == "5" and now["policy"]["backoffFactor"] == "3", now
    assert "less than minReplicas (2): ask for 2" in refused("scale", job.name, "--to", 1)
    job.stop()


def test_a_job_goes_to_the_size_that_is_asked_for_and_back(running):
    job = running("asked", world=2, options=PARTS)
    job.wait_for_steps()
    assert "goes from 2 to 1 replicas" in command("scale", job.name, "--to", 1).stdout
    assert job.wait_for_event("resized")["to"] == 1
    job.wait_for(lambda: size_of(job)["replicas"] == 1, "smaller job")
    job.wait_for_steps(2)
    assert size_of(job)["asked_for"] == 1
    assert command("scale", job.name, "--to", 2).returncode == 0
    assert job.wait_for_event("resized", 2)["to"] == 2
    job.wait_for(lambda: size_of(job)["replicas"] == 2, "larger job")
    job.wait_for_steps(2)
    assert "policy decides again" in command("scale", job.name, "--to", "auto").stdout
    job.wait_for(lambda: size_of(job)["asked_for"] is None, "decision of the policy")
    assert [line["replicas"] for line in job.journal("scale_requested")] == [1, 2, 0]
    last = job.stop()
    steps = [line["step"] for line in last.metrics]
    assert steps == list(range(1, len(steps) + 1)), last.explain()


def start_two(folder, name):
    """An elastic job, now of two nodes with a rank each, and its endpoint."""
    endpoint = f"127.0.0.1:{free_port()}"
    nodes = [
        start_node(
            folder, rank, endpoint, JOBS / "small.py", "--out", folder, "--until", 1_000_000, "--sleep", 0.01,
            nodes="1:2", world=1, options=["--rdzv-id", name, "--allow-inject"],
        )
        for rank in (0, 1)
    ]  # fmt: skip
    return nodes, endpoint


@pytest.mark.long
def test_of_several_nodes_the_first_one_is_asked_and_the_others_say_so(tmp_path):
    name = f"nodes-{os.getpid()}"
    nodes, _ = start_two(tmp_path, name)
    try:
        first, second = nodes

        def both_train():
            done = command("scale", name, "--json")
            return done.returncode == 0 and json.loads(done.stdout)["replicas"] == 2

        first.wait_for(both_train, "second replica", LIMIT_S)
        shown = command("scale", name).stdout
        assert "nodes    2 of at most 2" in shown and shown.count(": 1 rank\n") == 2, shown
        error = refused("scale", second.process.pid, "--to", 1)
        assert "launcher of node 1" in error and "node 0 decides" in error, error
        assert command("scale", name, "--set", "gracefulShutdownTimeoutInSeconds=77").returncode == 0
        lines = tmp_path / "journal" / "journal.node1.jsonl"

        def told():
            return [line for line in json_lines(lines) if line["event"] == "policy_changed"]

        second.wait_for(told, "new time to leave", LIMIT_S)
        assert told()[0]["graceful_shutdown_s"] == 77
        assert "goes from 2 to 1" in command("scale", name, "--to", 1).stdout
        first.wait_for(lambda: "waits, without ranks" in command("scale", name).stdout, "waiting node", LIMIT_S)
        second.process.terminate()
        second.wait_for_output("it leaves within 77 s", LIMIT_S)
    finally:
        for node in nodes:
            kill(node)


def test_a_job_is_asked_at_its_endpoint_by_who_has_its_token_and_answers_the_same(tmp_path):
    name = f"far-{os.getpid()}"
    token = tmp_path / "job.token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    key = ("--token-file", token, "--rdzv-id", name)
    nodes, endpoint = start_two(tmp_path, name)
    try:
        first = nodes[0]

        def ask(*words):
            return command("scale", endpoint, *words, *key)

        def replicas():
            done = ask("--json")
            return json.loads(done.stdout)["replicas"] if done.returncode == 0 else None

        def journal(event):
            return [line for line in json_lines(tmp_path / "journal" / "journal.jsonl") if line["event"] == event]

        first.wait_for(lambda: replicas() == 2, "second replica", LIMIT_S)
        assert f"{name}: 2 replicas of 1 rank" in ask().stdout
        here, there = (json.loads(command("scale", *job, "--json").stdout) for job in ([name], [endpoint, *key]))
        assert {**here, "step": 0, "last": 0} == {**there, "step": 0, "last": 0}
        assert "more than maxReplicas (2): ask for 2" in refused("scale", endpoint, "--to", 3, *key)
        assert "goes from 2 to 1" in ask("--to", 1).stdout
        first.wait_for(lambda: replicas() == 1, "smaller job", LIMIT_S)
        done = command("scale", endpoint, "--to", 2, f"--rdzv-id={name}", variables={"KEEPSTEP_TOKEN": TOKEN})
        assert "goes from 1 to 2" in done.stdout, done
        first.wait_for(lambda: replicas() == 2, "larger job", LIMIT_S)
        assert [line["replicas"] for line in journal("scale_requested")] == [1, 2]
        assert len(journal("asked")) > 5 and journal("refused") == []

        shown = command("stacks", endpoint, *key)
        assert shown.returncode == 0 and "rank 0 in " in shown.stdout, shown
        killed = command("inject", endpoint, "kill:rank=0", *key)
        assert killed.stdout.startswith("kill: rank 0, pid "), killed
        first.wait_for(lambda: journal("fault_detected"), "death", LIMIT_S)
        metrics = tmp_path / "journal" / "metrics.jsonl"
        until = len(json_lines(metrics)) + 3
        first.wait_for(lambda: len(json_lines(metrics)) >= until, f"step {until}", LIMIT_S)
    finally:
        for node in nodes:
            kill(node)


class Greeter(socketserver.BaseRequestHandler):
    """Some other service."""

    def handle(self):
        self.request.sendall(b"SSH-2.0-OpenSSH_9.2p1\r\n")
        while self.request.recv(4096):
            pass


def test_an_endpoint_that_is_wrong_is_told_from_a_token_that_is(tmp_path):
    name = f"strict-{os.getpid()}"
    nodes, endpoint = start_two(tmp_path, name)
    try:
        first = nodes[0]
        right = {"KEEPSTEP_TOKEN": TOKEN}
        own = ("--rdzv-id", name)
        first.wait_for(lambda: command("scale", endpoint, *own, variables=right).returncode == 0, "answer", LIMIT_S)
        for wrong in (
            refused("scale", endpoint, *own, "--to", 1, variables={"KEEPSTEP_TOKEN": OTHER_TOKEN}),
            refused("scale", endpoint, "--to", 1, variables=right),
        ):
            assert f"the job at {endpoint} does not know the job token given here, or has another --rdzv-id" in wrong
        assert "no job token" in refused("scale", endpoint, "--to", 1, variables={"KEEPSTEP_TOKEN": ""})
        nobody = f"127.0.0.1:{free_port()}"
        error = refused("stacks", nobody, variables=right)
        assert f"nobody accepts connections at {nobody}" in error and "Connection refused" in error, error
        with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Greeter) as other:
            threading.Thread(target=other.serve_forever).start()
            error = refused("inject", f"127.0.0.1:{other.server_address[1]}", "kill", variables=right)
            other.shutdown()
            assert "does not answer as a keepstep job does" in error, error
        lines = json_lines(tmp_path / "journal" / "journal.jsonl")
        assert [line for line in lines if line["event"] == "scale_requested"] == []
        refusals = [line["because"] for line in lines if line["event"] == "refused"]
        assert len(refusals) == 2 and all(line.startswith("a stranger: 127.0.0.1:") for line in refusals), refusals
    finally:
        for node in nodes:
            kill(node)
