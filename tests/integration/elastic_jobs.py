"""Elastic jobs on this machine: launchers that come and go, and a job that is asked to stop in the end."""

import json
import os
import signal
import subprocess
import time

from harness import JOBS, KEEPSTEP, Job, environment, json_lines
from several_nodes import TOKEN, free_port, kill, metrics_of_all, start_node

QUICK = [
    "--scaling-timeout", "0.2", "--min-change-interval", "0.1", "--elastic-backoff", "1",
    "--scale-up-snooze-time", "0.1", "--faulty-scale-down-timeout", "0.5", "--graceful-shutdown-timeout", "30",
]  # fmt: skip
NOTICE = 75  # exit code of a job that was told to stop


class Elastic:
    """One elastic job, `per_node` ranks on a node; a replica is a rank."""

    def __init__(self, folder, *job, per_node=2, nodes="1:4", options=(), script="reproducible.py"):
        self.folder = folder
        self.endpoint = f"127.0.0.1:{free_port()}"
        self.job = [JOBS / script, "--out", folder, *job]
        self.per_node = per_node
        self.nodes = nodes
        self.options = ["--ranks-per-replica", "1", "--min-replicas", "1", *QUICK, *options]
        self.launchers = {}
        self.started = set()
        self.ended = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for node in [*self.launchers.values(), *self.ended]:
            kill(node)

    def start(self, *ranks, variables=None, job=None):
        """`variables`, `job`: of these launchers alone, for a node that is unlike the others."""
        for rank in ranks:
            assert rank not in self.launchers
            again = "" if rank not in self.started else f".{len(self.ended)}"
            self.launchers[rank] = start_node(
                self.folder, rank, self.endpoint, *(job or self.job), nodes=self.nodes, world=self.per_node,
                options=self.options, journal=f"journal{again}", log=f"output.node{rank}{again}.txt",
                variables=variables,
            )  # fmt: skip
            self.started.add(rank)

    @property
    def first(self):
        return self.launchers[0]

    def events(self, name):
        path = self.folder / "journal" / "journal.jsonl"
        return [line for line in json_lines(path) if line["event"] == name] if path.exists() else []

    def steps(self):
        path = self.folder / "journal" / "metrics.jsonl"
        return json_lines(path) if path.exists() else []

    def mark(self):
        """Where node 0's journal ends now."""
        path = self.folder / "journal" / "journal.jsonl"
        return path.stat().st_size if path.exists() else 0

    def wait_for_event(self, name, mark=0, limit_s=60, where=lambda line: True, **fields):
        """The first such line after `mark`, as soon as it is there."""
        path = self.folder / "journal" / "journal.jsonl"
        deadline = time.monotonic() + limit_s
        while True:
            if path.exists():
                with open(path, "rb") as journal:
                    journal.seek(mark)
                    text = journal.read()
                whole = text[: text.rfind(b"\n") + 1]
                mark += len(whole)
                for line in map(json.loads, whole.splitlines()):
                    if line["event"] == name and fields.items() <= line.items() and where(line):
                        return line
            assert self.first.process.poll() is None, f"node 0 ended:\n{self.first.output()}"
            assert time.monotonic() < deadline, f"no {name} {fields}:\n{self.first.output()}"
            time.sleep(0.001)

    def wait_for_more_steps(self, steps):
        wanted = len(self.steps()) + steps
        self.first.wait_for(lambda: len(self.steps()) >= wanted, f"step {wanted}")

    def wait_for_world(self, ranks, steps=2):
        """Until so many ranks have committed `steps` steps, and no others have since."""

        def there():
            prepared = self.events("generation_prepared")
            if not prepared or prepared[-1]["ranks"] != ranks:
                return False
            committed = self.steps()
            return bool(committed) and committed[-1]["step"] >= prepared[-1]["version"] + steps

        self.first.wait_for(there, f"step of {ranks} ranks")

    def ask(self, *options):
        """`keepstep scale`, while it runs."""
        return subprocess.Popen(
            [KEEPSTEP, "scale", self.folder / "journal", *map(str, options)],
            env=environment() | {"KEEPSTEP_TOKEN": TOKEN}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask_for(self, to):
        return self.ask("--to", to)

    def scale(self, to):
        return answer(self.ask_for(to))

    def set_policy(self, value):
        return answer(self.ask("--set", value))

    def tell_to_leave(self, rank):
        """SIGTERM to its launcher, which is not waited for any more."""
        node = self.launchers.pop(rank)
        self.ended.append(node)
        node.process.send_signal(signal.SIGTERM)
        return node

    def leave(self, rank):
        """SIGTERM to its launcher; waits until that has ended."""
        node = self.tell_to_leave(rank)
        node.process.wait(60)
        return node

    def lose(self, rank):
        node = self.launchers.pop(rank)
        self.ended.append(node)
        kill(node)

    def pid_of(self, rank):
        """The process that has `rank`, or is about to have it."""
        prepared = self.events("generation_prepared")[-1]
        pids = {line["worker"]: line["pid"] for line in self.events("parked")}
        return pids[prepared["workers"][rank]]

    def kill_rank(self, rank):
        os.kill(self.pid_of(rank), signal.SIGKILL)

    def shrink_grow_and_lose_a_rank(self):
        """2 -> 1 -> 4 -> (kill) ranks, and two steps more; of 2 a node, the second one there from then on."""
        self.start(0)
        self.wait_for_world(2)
        self.scale(1)
        self.wait_for_world(1)
        self.start(1)
        self.scale(4)
        self.wait_for_world(4)
        self.kill_rank(3)
        self.wait_for_more_steps(2)

    def go_through_sizes(self):
        """4 -> 2 -> 6 -> (kill) -> 3 -> 8 -> (node lost) 6 -> 1 -> 4 ranks of 2 a node; the job as node 0 saw it."""
        self.start(0, 1)
        self.wait_for_world(4)
        left = self.leave(1)
        assert left.process.returncode == 0, left.output()
        self.wait_for_world(2)
        self.start(1, 2)
        self.wait_for_world(6)
        self.kill_rank(3)
        self.scale(3)
        self.wait_for_world(3)
        self.start(3)
        self.scale(8)
        self.wait_for_world(8)
        self.lose(2)
        self.wait_for_world(6)
        self.scale(1)
        self.wait_for_world(1)
        self.scale(4)
        self.wait_for_world(4)
        return self.stop()

    def stop(self):
        """Asks the job to stop after its step; the job as node 0 saw it."""
        self.first.process.send_signal(signal.SIGUSR1)
        codes = {}
        for rank, node in self.launchers.items():
            node.process.wait(60)
            codes[rank] = node.process.returncode
        assert set(codes.values()) == {NOTICE}, f"exit codes {codes}\n{self.first.output()}"
        notes = [line for path in sorted(self.folder.glob("*.jsonl")) for line in json_lines(path)]
        return Job(
            self.folder, self.first.command, self.first.process.returncode, self.first.output(),
            json_lines(self.folder / "journal" / "journal.jsonl"), metrics_of_all(self.folder), notes,
        )  # fmt: skip


def answer(asking):
    said, complaint = asking.communicate(timeout=60)
    assert asking.returncode == 0, complaint
    return said


def samples_of(job):
    """Sorted sample numbers of each committed step, from what ranks wrote down before they voted (``--note-ids``): also
    of those that were lost with their node. What counts is the last attempt at a step."""
    attempts = {}
    for note in job.notes:
        if "ids" in note:
            attempts.setdefault(note["step"], {}).setdefault(note["generation"], []).extend(note["ids"])
    assert [line["step"] for line in job.metrics] == list(range(1, len(job.metrics) + 1))
    return [sorted(attempts[line["step"]][max(attempts[line["step"]])]) for line in job.metrics]


# 48 samples in micro-batches of 2 are shared evenly by 1, 2, 3, 4, 6 and 8 ranks.
SHARDED_JOB = ["--global-batch", 48, "--micro-batch", 2, "--samples", 100_000, "--plain"]


def sharded(folder, *options, **more):
    job = ["--until", 100_000, "--sleep", 0.03, "--digests", "--note-ids", *SHARDED_JOB, *options]
    return Elastic(folder, *job, script="sharded.py", **more)
