"""Our side with several nodes: one launcher per node, all on this machine over loopback, and a waiting spare node.

The fault is a whole node: its launcher, which contains its agent, and every process below. Node 0 is never killed: it
runs the coordinator, whose end is the job's end.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from keepstep.bench.harness.environment import BenchError, free_port, keepstep_command
from keepstep.bench.harness.keepstep_job import KeepstepJob, Kill, tell_report
from keepstep.bench.harness.processes import Job, Processes

NODES = 2


class Launchers:
    """The launchers of one job by node number (`--node-rank`). Files go to `folder`.

    `options` and `script`: for every launcher. The job's journal is `folder`/run.
    """

    def __init__(
        self,
        processes: Processes,
        folder: Path,
        ranks_per_node: int,
        spare_nodes: int,
        options: Sequence[str],
        script: Sequence[str],
        environment: Mapping[str, str],
    ) -> None:
        self._processes = processes
        self._folder = folder
        self._options = [
            *("--nnodes", str(NODES), "--spare-nodes", str(spare_nodes), "--nproc-per-node", str(ranks_per_node)),
            *("--rdzv-endpoint", f"127.0.0.1:{free_port()}", *options),
        ]
        self._script = list(script)
        self._environment = {**environment, "KEEPSTEP_TOKEN": secrets.token_hex(32)}
        self._started = 0
        self._all = range(NODES + spare_nodes)
        self.jobs: dict[int, Job] = {}
        for node in self._all:
            self._start(node)

    def _start(self, node: int) -> None:
        run = self._folder / "run"
        # A journal is never overwritten: what a lost node of this number wrote stays where the report finds it.
        for path in run.glob(f"*.node{node}.jsonl"):
            path.rename(path.with_name(f"{path.stem}.{self._started}.jsonl"))
        self._started += 1
        self.jobs[node] = self._processes.start(
            [
                *(keepstep_command(), "run", "--node-rank", str(node), "--journal", str(run)),
                *(*self._options, *self._script),
            ],
            self._environment,
            self._folder / f"keepstep.node{node}.log",
        )

    def kill(self, node: int) -> tuple[int, float]:
        """SIGKILLs a node and tells the report. Returns the launcher's pid and CLOCK_MONOTONIC at the kill."""
        job = self.jobs.pop(node)
        mono = job.kill()
        tell_report(self._folder / "run", mono, node=node)
        return job.process.pid, mono

    def start_missing(self) -> None:
        """Starts a launcher under the number of each killed node: the next spare node."""
        for node in self._all:
            if node not in self.jobs:
                self._start(node)

    def check(self) -> None:
        """Raises BenchError if a launcher failed that was not killed."""
        for node, job in self.jobs.items():
            if not job.running() and job.process.returncode != 0:
                raise BenchError(
                    f"node {node} ended with exit code {job.process.returncode}. Its last lines, of {job.log}:\n"
                    f"{job.last_lines()}"
                )

    def stop(self) -> None:
        """Stops node 0 first; the others end with it."""
        for node in sorted(self.jobs):
            self.jobs[node].stop()


class KeepstepNodes(KeepstepJob):
    """The same ranks on two nodes. `spares` counts nodes here."""

    def launch(self, spares: int, script: Sequence[str], environment: Mapping[str, str]) -> Job:
        self._ranks_per_node = self.workload.world_size // NODES
        self.membership.nodes = list(range(NODES))
        self.membership.on_spare_nodes = spares * self._ranks_per_node
        self._launchers = Launchers(
            self.processes, self.folder, self._ranks_per_node, spares, ["--spares", "0"], script, environment
        )
        return self._launchers.jobs[0]

    def ready(self) -> bool | None:
        found = super().ready()
        if found is None:
            self._launchers.check()
        return found

    def choose(self, random_of: random.Random) -> int:
        """A place among the nodes that have ranks, except node 0's."""
        return random_of.randrange(1, NODES)

    def kill(self, victim: int) -> Kill:
        self.poll()
        node = self.membership.nodes[victim]
        pid, mono = self._launchers.kill(node)
        after_commit_s = self.after_commit_s(mono)
        return Kill(f"node {node}", victim * self._ranks_per_node, self._ranks_per_node, pid, mono, after_commit_s)

    def refill(self) -> None:
        self._launchers.start_missing()

    def stop(self) -> None:
        self._launchers.stop()
