"""Jobs of several nodes on one machine: a launcher each, as on several machines; nodes that get killed as a whole."""

import os
import secrets
import signal
import socket
import subprocess
import time
from pathlib import Path

from harness import JOBS, KEEPSTEP, LIMIT_S, Job, environment, json_lines


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def descendants(pid):
    """All processes below `pid`, the agent's workers and its zygote among them."""
    children = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended meanwhile
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


class Nodes:
    """`count` launchers of one job, and `spare` more that wait."""

    def __init__(self, folder, script, *script_args, count=2, per_node=2, spare=0, spares=0, options=()):
        self.folder = folder
        self.script = script
        self.script_args = script_args
        self.count = count
        self.spare = spare
        self.endpoint = f"127.0.0.1:{free_port()}"
        self.token = secrets.token_hex(16)
        self.options = ["--nproc-per-node", per_node, "--spares", spares, *options]
        self.processes = {}
        self.killed = set()
        folder.mkdir(parents=True, exist_ok=True)
        for node in range(count + spare):
            self.launch(node)

    def launch(self, node):
        command = [
            KEEPSTEP, "run", "--nnodes", self.count, "--spare-nodes", self.spare, "--node-rank", node,
            "--rdzv-endpoint", self.endpoint, "--journal", self.folder / "journal", *self.options,
            self.script, *self.script_args,
        ]  # fmt: skip
        command = [str(part) for part in command]
        with open(self.folder / f"output{node}.txt", "ab") as output:
            self.processes[node] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                env={**environment(), "KEEPSTEP_TOKEN": self.token}, start_new_session=True,
            )  # fmt: skip
        self.command = command

    def metrics_file(self, node):
        return self.folder / "journal" / ("metrics.jsonl" if node == 0 else f"metrics.node{node}.jsonl")

    def wait_for_step(self, step):
        """Until the job has committed it."""
        deadline = time.monotonic() + LIMIT_S
        while not any(line["step"] >= step for line in json_lines(self.metrics_file(0))):
            assert self.processes[0].poll() is None, self.read().explain()
            assert time.monotonic() < deadline, self.read().explain()
            time.sleep(0.005)

    def kill(self, node):
        """The node is gone: agent first, then all that it had started."""
        launcher = self.processes[node]
        below = descendants(launcher.pid)
        for pid in [launcher.pid, *below]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        launcher.wait()
        self.killed.add(node)

    def finish(self, limit_s=LIMIT_S):
        deadline = time.monotonic() + limit_s
        try:
            for node, process in self.processes.items():
                if node not in self.killed:
                    process.wait(max(deadline - time.monotonic(), 0.1))
        finally:
            for process in self.processes.values():
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        return self.read()

    def read(self):
        """As one job: what the ranks of all nodes logged for a step is in one line."""
        notes = []
        for path in sorted(self.folder.glob("*.jsonl")):
            notes += json_lines(path)
        lines = {}
        for node in range(len(self.processes)):
            for line in json_lines(self.metrics_file(node)):
                lines[line["step"]] = {**line, **lines.get(line["step"], {})}
        output = "\n".join(
            f"--- node {node}\n" + (self.folder / f"output{node}.txt").read_text(errors="replace")
            for node in self.processes
        )
        codes = {node: process.returncode for node, process in self.processes.items() if node not in self.killed}
        code = next((code for code in codes.values() if code != 0), 0)
        journal = json_lines(self.folder / "journal" / "journal.jsonl")
        return Job(self.folder, self.command, code, output, journal, [lines[step] for step in sorted(lines)], notes)


def run_small_on_nodes(folder, *, inject=(), kill=(), model="plain", until=12, extra=(), **nodes):
    """tests/jobs/small.py on several nodes; `kill`: (node, the step after whose commit it is killed)."""
    injected = [part for text in inject for part in ("--inject", text)]
    job = Nodes(
        folder, JOBS / "small.py", "--out", folder, "--until", until, "--model", model, *extra,
        options=injected, **nodes,
    )  # fmt: skip
    try:
        for node, step in kill:
            job.wait_for_step(step)
            job.kill(node)
    except BaseException:
        for process in job.processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        raise
    return job.finish()
