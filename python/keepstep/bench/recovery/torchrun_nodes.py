"""The opponent torchrun as two agents on this machine; the second is killed with its workers and restarted at once.

The first agent hosts the rendezvous' store; like our node 0 it is never killed.
"""

from __future__ import annotations

from keepstep.bench.harness.environment import free_port
from keepstep.bench.harness.keepstep_nodes import NODES
from keepstep.bench.harness.processes import Job
from keepstep.bench.recovery.torchrun_job import Torchrun, TorchrunKill


class TorchrunNodes(Torchrun):
    def launch(self) -> Job:
        self._endpoint = f"127.0.0.1:{free_port()}"
        first = self._start(0)
        self._second = self._start(1)
        return first

    def _start(self, node: int) -> Job:
        return self.start_agent(
            [
                *("--nnodes", str(NODES), "--nproc-per-node", str(self.workload.world_size // NODES)),
                *("--rdzv-backend", "c10d", "--rdzv-endpoint", self._endpoint, "--rdzv-id", "bench"),
                *("--rdzv-conf", f"is_host={int(node == 0)}", "--local-addr", "127.0.0.1"),
            ],
            f"torchrun.node{node}.log",
        )

    def kill(self, rank: int) -> TorchrunKill:
        """Kills the second agent and its workers, whatever their ranks."""
        self.commits.poll()
        last = max(commit.mono for commit in self.commits.commits)
        pid = self._second.process.pid
        mono = self._second.kill()
        self._second = self._start(1)
        return TorchrunKill(rank, pid, mono, mono - last)

    def stop(self) -> None:
        super().stop()
        self._second.stop()
