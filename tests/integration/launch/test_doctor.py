"""`keepstep doctor` itself: on this machine, on a machine that lacks something, and with peers."""

import json
import shutil
import signal
import subprocess
import sys

import pytest

from harness import JOBS, KEEPSTEP, environment
from keepstep.doctor.loopback import environment as loopback_environment
from keepstep.doctor.loopback import loopback
from network import network, why_not
from several_nodes import OTHER_TOKEN, TOKEN

LIMIT_S = 600
NAMESPACES = pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
# What this test's machine may have to be told of; anything else must be fine.
MAY_WARN = {"CPUs", "wall clock", "host name", "/dev/shm", "stacks", "ports", "peers' names"}


def start(*options, prefix=(), variables=None):
    values = environment() | {"KEEPSTEP_COMMAND": str(KEEPSTEP)} | (variables or {})
    words = [*prefix, str(KEEPSTEP), "doctor", *options]
    return subprocess.Popen(words, env=values, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end(process):
    """Its exit code and what it says, as JSON."""
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert process.returncode in (0, 1), err
    return process.returncode, json.loads(out)


def doctor(*options, **how):
    return end(start(*options, "--json", **how))


def of_level(answer, level):
    return {each["check"]: each for each in answer["checks"] if each["level"] == level}


def test_this_machine_can_run_jobs():
    code, answer = doctor("--nproc-per-node", "2")
    assert (code, answer["can_run"], of_level(answer, "error")) == (0, True, {}), answer
    assert set(of_level(answer, "warning")) <= MAY_WARN, answer
    fine = of_level(answer, "fine")
    assert fine["loopback"]["found"].endswith("GB/s over TLS; all sums are right")
    assert "shared memory" in fine["loopback"]["found"]
    assert sys.version.split()[0] in fine["Python"]["found"]
    assert answer["verdict"].startswith("This machine can run keepstep jobs")


@pytest.mark.long
def test_the_module_does_the_same_and_people_get_lines():
    done = subprocess.run(
        [sys.executable, "-m", "keepstep.doctor"],
        env=environment() | {"KEEPSTEP_COMMAND": str(KEEPSTEP)}, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert any(line.startswith("fine    kernel: all ") for line in lines)
    assert lines[-1].startswith("This machine can run keepstep jobs")
    assert "\x1b" not in done.stdout


def test_too_few_open_files_are_named_and_no_job_is_tried():
    code, answer = doctor("--nproc-per-node", "2", prefix=["sh", "-c", 'ulimit -n 64; exec "$@"', "sh"])
    assert (code, answer["can_run"]) == (1, False)
    assert list(of_level(answer, "error")) == ["open files"], answer
    broken = of_level(answer, "error")["open files"]
    assert "the limit is 64" in broken["found"] and "ulimit -n" in broken["advice"]
    assert "loopback" not in [each["check"] for each in answer["checks"]]


def with_dev_shm(size):
    """A command in whose mount namespace /dev/shm has this size."""
    return ["unshare", "-m", "sh", "-c", f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$@"', "sh"]


can_mount = (
    shutil.which("unshare") is not None
    and subprocess.run([*with_dev_shm("16m"), "true"], capture_output=True).returncode == 0
)


@pytest.mark.skipif(not can_mount, reason="mounting in a namespace needs root")
@pytest.mark.parametrize(
    "size, code, level", [pytest.param("16m", 0, "warning", marks=pytest.mark.long), ("512k", 1, "error")]
)
def test_a_small_dev_shm_is_a_warning_and_a_full_one_an_error(size, code, level):
    ended, answer = doctor(prefix=with_dev_shm(size))
    assert ended == code, answer
    assert "docker run --shm-size" in of_level(answer, level)["/dev/shm"]["advice"]


@pytest.mark.parametrize("python", ["/no/such/python", "without_the_package"])
def test_an_interpreter_that_no_job_could_use_is_named(tmp_path, python):
    if python == "without_the_package":
        python = tmp_path / "python"
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
        python.chmod(0o755)
    process = start(variables={"KEEPSTEP_PYTHON": str(python)})
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    last = err.splitlines()[-1]
    assert last.startswith("keepstep doctor: error: ") and str(python) in last and "KEEPSTEP_PYTHON" in last


def test_a_job_that_fails_is_told_with_what_it_said_last(monkeypatch):
    monkeypatch.setenv("KEEPSTEP_COMMAND", str(KEEPSTEP))
    finding = only(loopback(loopback_environment() | {"KEEPSTEP_PYTHON": "/bin/false"}))
    assert (finding.check, finding.level) == ("loopback", "error")
    assert "a small job on this machine failed: " in finding.found and "exited with code 1" in finding.found


def only(findings):
    (finding,) = findings
    return finding


def meet(nodes, endpoint, tokens=(TOKEN, TOKEN)):
    """A doctor on each of two nodes, at the same time."""
    processes = [
        start(
            "--json", "--rdzv-endpoint", endpoint, "--timeout-s", "250",
            prefix=node.command(), variables={"KEEPSTEP_TOKEN": token},
        )
        for node, token in zip(nodes, tokens, strict=True)
    ]  # fmt: skip
    return [end(process) for process in processes]


@pytest.mark.long
@NAMESPACES
def test_two_doctors_see_each_other():
    with network(2) as net:
        for code, answer in meet(net.nodes, net.endpoint):
            assert (code, of_level(answer, "error")) == (0, {}), answer
            fine = of_level(answer, "fine")
            a, b = (node.ip for node in net.nodes)
            assert fine["peers"]["found"].startswith(f"2 machines met at {net.endpoint}: ")
            assert a in fine["data plane"]["found"] and b in fine["data plane"]["found"]
            assert "peers' clocks" in fine


@NAMESPACES
@pytest.mark.long
def test_another_token_is_named_at_both_ends():
    with network(2) as net:
        (code, first), (other_code, other) = meet(net.nodes, net.endpoint, tokens=(TOKEN, OTHER_TOKEN))
        assert (code, other_code) == (1, 1)
        here, there = of_level(first, "error")["peers"], of_level(other, "error")["peers"]
        assert here["found"] == f"{net.nodes[1].ip} came to {net.endpoint} with another job token or --rdzv-id"
        assert "does not know the job token of this node" in there["found"]
        assert "with its peers yet: peers" in other["verdict"]


@NAMESPACES
@pytest.mark.long
def test_nobody_at_the_endpoint_is_said_with_what_was_tried():
    with network(2) as net:
        process = start(
            *("--json", "--rdzv-endpoint", net.endpoint, "--timeout-s", "2"),
            prefix=net.nodes[1].command(), variables={"KEEPSTEP_TOKEN": TOKEN},
        )  # fmt: skip
        code, answer = end(process)
        assert code == 1
        found = of_level(answer, "error")["peers"]["found"]
        assert found.startswith(f"nobody answers at the endpoint {net.endpoint} after 2 s")
        assert "Connection refused" in found


@NAMESPACES
@pytest.mark.long
def test_ports_that_a_firewall_closes_are_named():
    with network(2) as net:
        net.let_only_endpoint_through(0, 1)
        for code, answer in meet(net.nodes, net.endpoint):
            broken = of_level(answer, "error")["peers"]
            assert code == 1
            assert "no connection to " in broken["found"] and "firewalls" in broken["advice"]


@NAMESPACES
@pytest.mark.long
def test_a_job_at_the_endpoint_is_left_alone(tmp_path):
    endless = [JOBS / "small.py", "--out", tmp_path, "--until", 10**6, "--sleep", 0.2]
    with network(2) as net:
        launchers = [
            net.start(tmp_path / "job", node, *endless, world=1)  # it leaves the doctor some of the CPUs
            for node in (0, 1)
        ]
        try:
            launchers[0].wait_for(lambda: steps(tmp_path) > 3, "step 3")
            code, answer = end(
                start(
                    *("--json", "--rdzv-endpoint", net.endpoint),
                    prefix=net.nodes[1].command(),
                    variables={"KEEPSTEP_TOKEN": TOKEN},
                )
            )
            before = steps(tmp_path)
            assert code == 0, answer
            assert f"runs at {net.endpoint}: this machine reaches it" in of_level(answer, "fine")["endpoint"]["found"]
            assert "peers" not in [each["check"] for each in answer["checks"]]
            launchers[0].wait_for(lambda: steps(tmp_path) > before, "further step")
            text = (tmp_path / "job" / "journal" / "journal.jsonl").read_text()
            assert '"event":"refused"' not in text and '"event":"fault_detected"' not in text
        finally:
            for launcher in launchers:
                launcher.process.send_signal(signal.SIGTERM)
                launcher.process.wait(LIMIT_S)


def steps(folder):
    metrics = folder / "job" / "journal" / "metrics.jsonl"
    return len(metrics.read_text().splitlines()) if metrics.exists() else 0
