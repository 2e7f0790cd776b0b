"""Elastic jobs on this machine: launchers come and go, and the job is asked to stop when the test is through."""

import os
import signal
import subprocess

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

    def start(self, *ranks):
        for rank in ranks:
            assert rank not in self.launchers
            self.launchers[rank] = start_node(
                self.folder, rank, self.endpoint, *self.job,
                nodes=self.nodes, world=self.per_node, options=self.options,
                journal="journal" if rank not in self.started else f"journal.{len(self.ended)}",
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

    def wait_for_world(self, ranks, steps=2):
        """Until the newest `steps` committed steps were made by so many ranks."""

        def there():
            newest = self.steps()[-steps:]
            return len(newest) == steps and all(line["world"] == ranks for line in newest)

        self.first.wait_for(there, f"step of {ranks} ranks")

    def scale(self, to):
        done = subprocess.run(
            [KEEPSTEP, "scale", self.folder / "journal", "--to", str(to)],
            env=environment() | {"KEEPSTEP_TOKEN": TOKEN}, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def leave(self, rank):
        """SIGTERM to its launcher; waits until that has ended."""
        node = self.launchers.pop(rank)
        self.ended.append(node)
        node.process.send_signal(signal.SIGTERM)
        node.process.wait(60)
        return node

    def lose(self, rank):
        node = self.launchers.pop(rank)
        self.ended.append(node)
        kill(node)

    def kill_rank(self, rank):
        """SIGKILL to the process that has `rank`."""
        prepared = self.events("generation_prepared")[-1]
        worker = prepared["workers"][rank]
        pids = {line["worker"]: line["pid"] for line in self.events("parked")}
        os.kill(pids[worker], signal.SIGKILL)

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


def samples_of(job):
    """Sorted sample numbers of each committed step, from what ranks wrote down before they voted (``--note-ids``): also
    of those that were lost with their node. What counts is the last attempt at a step."""
    attempts = {}
    for note in job.notes:
        if "ids" in note:
            attempts.setdefault(note["step"], {}).setdefault(note["generation"], []).extend(note["ids"])
    assert [line["step"] for line in job.metrics] == list(range(1, len(job.metrics) + 1))
    return [sorted(attempts[line["step"]][max(attempts[line["step"]])]) for line in job.metrics]
