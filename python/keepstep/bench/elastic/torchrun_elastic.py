"""The opponent: torchrun's elastic restart with two agents, the second of which joins, and leaves by SIGTERM.

The first agent hosts the rendezvous' store and is never stopped, like our node 0. Workers save through DCP when they
are told to stop (jobs/torchrun_elastic_gpt.py). TORCH_DISABLE_SHARE_RDZV_TCP_STORE is set like in torchrun_job.py.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from keepstep.bench.elastic.keepstep_elastic import LEAVE_TIMEOUT_S, ElasticJob
from keepstep.bench.harness.environment import free_port, job_environment
from keepstep.bench.harness.processes import Job, Processes

# By default torchrun waits 30 s for more agents once it has enough, and takes a silent one for lost after 15 s; each
# shrink takes both. These are the shortest usable values, in whole seconds: with two attempts, a joining node takes the
# other one for dead, because a heartbeat that is slightly early is skipped, and trains alone.
TUNED = {"last_call_timeout": "1", "keep_alive_interval": "1", "keep_alive_max_attempt": "3"}
DEFAULTS: dict[str, str] = {}


class TorchrunAgents(ElasticJob):
    """`conf` goes to --rdzv-conf."""

    name = "torchrun"

    def __init__(
        self, processes: Processes, folder: Path, script: Sequence[str], most: int, conf: dict[str, str]
    ) -> None:
        self.most = most
        self.conf = conf
        self.checkpoints = folder / "checkpoints"
        super().__init__(processes, folder, script)

    def start(self) -> None:
        self.checkpoints.mkdir()
        self._endpoint = f"127.0.0.1:{free_port()}"
        self._joined = 0
        self._second: Job | None = None
        self.job = self._start(0, "torchrun.log")

    def _start(self, node: int, log: str) -> Job:
        conf = {"is_host": str(int(node == 0))} | self.conf
        return self.processes.start(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:2"),
                *("--nproc-per-node", str(self.most // 2), "--max-restarts", "1000", "--local-addr", "127.0.0.1"),
                *("--rdzv-backend", "c10d", "--rdzv-endpoint", self._endpoint, "--rdzv-id", "bench"),
                *("--rdzv-conf", ",".join(f"{name}={value}" for name, value in conf.items())),
                *(*self.script, "--checkpoints", str(self.checkpoints)),
            ],
            job_environment() | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
            self.folder / log,
        )

    def resize(self, ranks: int) -> None:
        if ranks == self.most:
            self._joined += 1
            self._second = self._start(1, f"torchrun.node1.{self._joined}.log")
            return
        assert self._second is not None
        second, self._second = self._second, None
        second.process.send_signal(signal.SIGTERM)
        second.wait(LEAVE_TIMEOUT_S)  # its exit code is that of SIGTERM

    def stop(self) -> None:
        for job in (self.job, self._second):
            if job is not None:
                job.stop(signal.SIGTERM)
        self.worlds.poll()

    def checkpoint_bytes(self) -> int:
        """Size of the newest checkpoint; 0 if there is none."""
        folders = sorted(self.checkpoints.glob("step-*"), key=lambda folder: int(folder.name.removeprefix("step-")))
        return sum(file.stat().st_size for file in folders[-1].iterdir()) if folders else 0
