"""The rootless Store over several nodes that torchrun or srun started. Each node is a set of processes here, with an
address of its own."""

import contextlib
import os
import signal
import subprocess
import time

import pytest

from harness import JOBS, PYTHON, ROOT
from several_nodes import free_ports
from test_other_launchers import agents_of

SCRIPT = JOBS / "standalone.py"


class Nodes:
    """The environment of each of `count` nodes, and what was started on them."""

    def __init__(self, count, folder):
        self.job = f"nodes-{os.getpid()}-{time.monotonic_ns()}"
        self.ports = free_ports(count)
        self.folder = folder
        self.processes = []
        self.outputs = []
        token = folder / "token"
        token.write_text("t" * 40)
        token.chmod(0o600)
        self.variables = {
            "KEEPSTEP_STORE": ",".join(f"127.0.0.1:{port}" for port in self.ports),
            "KEEPSTEP_STORE_TOKEN_FILE": str(token),
            "KEEPSTEP_JOB": self.job,
            "KEEPSTEP_COMMAND": str(ROOT / "build" / "keepstep"),
        }

    def start(self, node, *words, **variables):
        output = self.folder / f"{len(self.processes)}.txt"
        values = {**os.environ, **self.variables, "KEEPSTEP_STORE_NODE": str(node), **variables}
        with output.open("wb") as file:
            process = subprocess.Popen(
                list(map(str, words)), env=values, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )
        self.processes.append(process)
        self.outputs.append(output)
        return process

    def rank(self, node, rank, world, *arguments, **variables):
        values = {
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            "SLURM_STEP_NUM_NODES": str(len(self.ports)),
            **variables,
        }
        return self.start(node, PYTHON, SCRIPT, *arguments, **values)

    def torchrun(self, node, *arguments):
        return self.start(node, PYTHON, "-m", "torch.distributed.run", *arguments)

    def ends(self, limit_s=120):
        deadline = time.monotonic() + limit_s
        return [process.wait(max(1, deadline - time.monotonic())) for process in self.processes], self.texts()

    def texts(self):
        return [output.read_text(errors="replace") for output in self.outputs]

    def wait_for_text(self, index, text, limit_s=60):
        deadline = time.monotonic() + limit_s
        while text not in self.texts()[index]:
            assert time.monotonic() < deadline and self.processes[index].poll() is None, self.texts()
            time.sleep(0.02)


@pytest.fixture
def nodes(tmp_path):
    made = Nodes(2, tmp_path)
    yield made
    for process in made.processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    deadline = time.monotonic() + 60
    while agents_of(made.job):  # they end a moment after the last rank of all nodes
        assert time.monotonic() < deadline, "a node's agent outlives its job"
        time.sleep(0.1)


def test_torchrun_on_two_nodes(nodes):
    (port,) = free_ports(1)
    for node in (0, 1):
        nodes.torchrun(
            node, "--nnodes", 2, "--node-rank", node, "--nproc-per-node", 2, "--master-addr", "127.0.0.1",
            "--master-port", port, SCRIPT, "across",
        )  # fmt: skip
    codes, outputs = nodes.ends()
    assert codes == [0, 0], outputs
    assert [output.count("fine") for output in outputs] == [2, 2], outputs
    assert len(agents_of(nodes.job)) <= 2  # an agent a node, not a rank


@pytest.mark.long
def test_a_restart_of_torchrun_begins_without_keys(nodes):
    (port,) = free_ports(1)
    marker = nodes.folder / "failed"
    for node in (0, 1):
        nodes.torchrun(
            node, "--nnodes", 2, "--nproc-per-node", 2, "--rdzv-backend", "c10d", "--rdzv-endpoint",
            f"127.0.0.1:{port}", "--rdzv-id", "x", "--max-restarts", 2, SCRIPT, "across", marker,
        )  # fmt: skip
    codes, outputs = nodes.ends(300)
    assert codes == [0, 0], outputs
    assert marker.exists()
    assert [output.count("fine") for output in outputs] == [2, 2], outputs


@pytest.mark.long
def test_a_rank_learns_that_another_nodes_agent_is_gone(nodes):
    nodes.rank(0, 0, 2, "agent_dies")
    nodes.rank(1, 1, 2, "agent_dies")
    nodes.wait_for_text(0, "waits")
    (agent,) = [pid for pid in agents_of(nodes.job) if "--node 1" in command_of(pid)]
    os.kill(int(agent), signal.SIGKILL)
    codes, outputs = nodes.ends()
    assert codes == [0, 0], outputs
    assert f"raised store: the connection to the agent of node 1 (127.0.0.1:{nodes.ports[1]}) broke" in outputs[0]
    assert "raised store: this node's agent ended" in outputs[1]


def test_a_node_that_never_comes_is_named(nodes):
    nodes.rank(1, 1, 2, "never")
    codes, outputs = nodes.ends()
    assert codes == [0], outputs
    assert f"was not set within 2 s; not connected: node 0 (127.0.0.1:{nodes.ports[0]}): " in outputs[0], outputs


def test_other_jobs_and_tokens_are_strangers(nodes):
    other = nodes.folder / "other"
    other.write_text("u" * 40)
    other.chmod(0o600)
    nodes.rank(0, 0, 2, "never")
    nodes.rank(1, 1, 2, "never", KEEPSTEP_STORE_TOKEN_FILE=str(other))
    codes, outputs = nodes.ends()
    assert codes == [0, 0], outputs
    assert "not connected: node 1" in outputs[0], outputs
    assert "not connected: node 0" in outputs[1] and "key" in outputs[1], outputs


def test_without_a_token_it_says_what_to_set(nodes):
    nodes.rank(0, 0, 2, "never", KEEPSTEP_STORE_TOKEN_FILE="")
    codes, outputs = nodes.ends()
    assert codes == [1], outputs
    assert "KEEPSTEP_STORE_TOKEN_FILE" in outputs[0] and "openssl rand -hex 32" in outputs[0], outputs


def command_of(pid):
    with open(f"/proc/{pid}/cmdline") as file:
        return file.read().replace("\0", " ")
