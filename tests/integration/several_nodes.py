"""Jobs of several nodes, all on this machine: one launcher each, over loopback."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from harness import JOBS, KEEPSTEP, LIMIT_S, Job, environment, json_lines

TOKEN = "a token of this test, and no secret"
OTHER_TOKEN = "the token of another job altogether"


@dataclass
class Node:
    rank: int
    command: list
    process: subprocess.Popen
    folder: Path
    log: str = ""  # where its output is, if not in the usual file

    def output(self):
        return (self.folder / (self.log or f"output.node{self.rank}.txt")).read_text(errors="replace")

    def wait_for(self, happened, what, limit_s=60):
        """Until `happened()`; fails if the launcher ends before."""
        deadline = time.monotonic() + limit_s
        while not happened():
            assert self.process.poll() is None, f"node {self.rank} ended:\n{self.output()}"
            assert time.monotonic() < deadline, f"no {what} from node {self.rank}:\n{self.output()}"
            time.sleep(0.02)

    def wait_for_output(self, text, limit_s=60):
        self.wait_for(lambda: text in self.output(), f"'{text}'", limit_s)


def free_port():
    return free_ports(1)[0]


def free_ports(count):
    """Ports that nobody has, below those that the kernel gives to connections: so nobody gets them meanwhile."""
    found = []
    while len(found) < count:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


def start_node(
    folder, rank, endpoint, script, *script_args,
    nodes=2, world=2, options=(), token=TOKEN, variables=None, prefix=(), journal="journal", log="",
):  # fmt: skip
    """One launcher. `endpoint`: host:port. `world`: ranks on each node. `variables`: for its environment. `prefix`: a
    command that runs what follows it. `journal`, `log`: names of its folder and of its output's file; a node that is
    started again needs others."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        *prefix, KEEPSTEP, "run", "--nnodes", nodes, "--node-rank", rank, "--nproc-per-node", world,
        "--rdzv-endpoint", endpoint, "--journal", folder / journal, *options, script, *script_args,
    ]  # fmt: skip
    command = [str(part) for part in command]
    values = environment()
    values.pop("KEEPSTEP_TOKEN", None)
    if token is not None:
        values["KEEPSTEP_TOKEN"] = token
    values.update(variables or {})
    with open(folder / (log or f"output.node{rank}.txt"), "wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=values,
            start_new_session=True,
        )  # fmt: skip
    return Node(rank, command, process, folder, log)


def run_small_on_nodes(folder, *, nodes=2, world=2, spares=0, inject=(), model="plain", until=12, extra=()):
    """tests/jobs/small.py to its end, on several nodes."""
    injected = [part for text in inject for part in ("--inject", text)]
    started = start_nodes(
        folder, JOBS / "small.py", "--out", folder, "--until", until, "--model", model, *extra,
        nodes=nodes, world=world, options=["--spares", spares, *injected],
    )  # fmt: skip
    return finish_nodes(started)


def start_nodes(folder, script, *script_args, nodes=2, launchers=None, **how):
    endpoint = f"127.0.0.1:{free_port()}"
    ranks = range(nodes) if launchers is None else launchers
    return [start_node(folder, rank, endpoint, script, *script_args, nodes=nodes, **how) for rank in ranks]


def finish_nodes(nodes, limit_s=LIMIT_S):
    """Waits for all launchers; the job as node 0 saw it, with the output of all. Every launcher must exit alike."""
    deadline = time.monotonic() + limit_s
    try:
        for node in nodes:
            node.process.wait(max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        for node in nodes:
            kill(node)
        print("\n".join(f"node {node.rank}:\n{node.output()[-4000:]}" for node in nodes), file=sys.stderr)
        raise
    folder = nodes[0].folder
    notes = []
    for path in sorted(folder.glob("*.jsonl")):
        notes += json_lines(path)
    job = Job(
        folder, nodes[0].command, nodes[0].process.returncode, "".join(node.output() for node in nodes),
        json_lines(folder / "journal" / "journal.jsonl"), metrics_of_all(folder), notes,
    )  # fmt: skip
    codes = [node.process.returncode for node in nodes]
    assert codes == [codes[0]] * len(codes), f"exit codes {codes}{job.explain()}"
    return job


def metrics_of_all(folder):
    """Node 0's lines, with what ranks of other nodes logged for the same steps."""
    lines = json_lines(folder / "journal" / "metrics.jsonl")
    by_step = {line["step"]: line for line in lines}
    for path in sorted(folder.glob("journal*/metrics.node*.jsonl")):
        for line in json_lines(path):
            for name, value in line.items():
                if line["step"] in by_step:
                    by_step[line["step"]].setdefault(name, value)
    return lines


def wait_for_line(journal, limit_s=60, **fields):
    """Until `journal` has a line with these fields."""
    deadline = time.monotonic() + limit_s
    while not any(fields.items() <= line.items() for line in json_lines(journal)):
        assert time.monotonic() < deadline, f"no {fields} in {limit_s} s: {json_lines(journal)}"
        time.sleep(0.02)


def wait_for_steps(folder, steps, limit_s=60):
    deadline = time.monotonic() + limit_s
    while len(json_lines(folder / "journal" / "metrics.jsonl")) < steps:
        assert time.monotonic() < deadline, f"no {steps} steps in {limit_s} s"
        time.sleep(0.01)


def lose_node_1(nodes, folder, steps):
    """Kills it after so many steps; the job as the other two saw it."""
    try:
        wait_for_steps(folder, steps)
        kill(nodes[1])
        return finish_nodes([nodes[0], nodes[2]])
    finally:
        for node in nodes:
            kill(node)


def kill(node):
    if node.process.poll() is None:
        os.killpg(node.process.pid, signal.SIGKILL)
        node.process.wait()


def processes_of(mark):
    """Processes of this machine whose environment or command line has `mark`."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            if mark.encode() in (folder / "environ").read_bytes() + (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue  # it ended meanwhile
    return found


def assert_nothing_is_left(mark, limit_s=20):
    deadline = time.monotonic() + limit_s
    while left := processes_of(mark):
        assert time.monotonic() < deadline, f"processes {left} outlive their job"
        time.sleep(0.05)


def node_lines(folder, kind, node):
    """A node's own journal or metrics."""
    return json_lines(folder / "journal" / f"{kind}.node{node}.jsonl")


def as_json(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]
