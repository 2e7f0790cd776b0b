"""`keepstep scale`: the size of a running job, shown and changed."""

import json
import os

from harness import JOBS, LIMIT_S, json_lines
from running_jobs import command, refused
from several_nodes import kill, start_nodes

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
    assert "later version" in refused("scale", "node-a:29400", "--to", 2)
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


def test_of_several_nodes_the_first_one_is_asked_and_the_others_say_so(tmp_path):
    name = f"nodes-{os.getpid()}"
    nodes = start_nodes(
        tmp_path, JOBS / "small.py", "--out", tmp_path, "--until", 1_000_000, "--sleep", 0.01,
        nodes="1:2", launchers=[0, 1], world=1, options=["--rdzv-id", name],
    )  # fmt: skip
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
