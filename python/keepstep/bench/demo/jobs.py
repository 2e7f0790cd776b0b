"""The jobs of the demo's acts: the same GPT each time, on one node or on several."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from keepstep.bench.demo.acts import Act
from keepstep.bench.demo.run_files import RunFiles
from keepstep.bench.demo.scene import Scene
from keepstep.bench.demo.show import Show
from keepstep.bench.harness.environment import BenchError, gpt_example, job_environment, keepstep_command
from keepstep.bench.harness.keepstep_nodes import NODES, Launchers
from keepstep.bench.harness.processes import Job, Processes
from keepstep.bench.harness.waiting import wait_for

WORLD_SIZE = 4
GLOBAL_BATCH = 16
TIMEOUT_S = 600.0
KILLED_NODE = 1  # not node 0, which runs the coordinator


@dataclass(frozen=True)
class Jobs:
    """Each job gets a folder below `out`, with run/, ids/ and digests.json."""

    processes: Processes
    show: Show
    out: Path
    until: int
    seed: int

    def train(self, act: Act, faults: list[str]) -> Path:
        """Trains on one node with a spare. Returns the job's folder."""
        folder = self._folder(act)
        command = [
            *(keepstep_command(), "run", "--nproc-per-node", str(WORLD_SIZE), "--spares", "1"),
            *("--journal", str(folder / "run"), *self._options(faults), *self._script(folder)),
        ]
        self._watch(act, folder, self.processes.start(command, job_environment(), folder / "job.log"))
        return folder

    def train_on_nodes(self, act: Act, faults: list[str], node_killed_after: int) -> Path:
        """The same on two nodes and a spare node; kills one node after `node_killed_after` steps."""
        folder = self._folder(act)
        options = ["--spares", "0", *self._options(faults)]
        ranks = WORLD_SIZE // NODES
        nodes = Launchers(self.processes, folder, ranks, 1, options, self._script(folder), job_environment())

        def after(steps: int) -> None:
            nodes.check()
            if steps >= node_killed_after and KILLED_NODE in nodes.jobs:
                nodes.kill(KILLED_NODE)

        self._watch(act, folder, nodes.jobs[0], after)
        nodes.stop()
        return folder

    def _folder(self, act: Act) -> Path:
        folder = self.out / act.name
        folder.mkdir(parents=True)
        return folder

    def _options(self, faults: list[str]) -> list[str]:
        return ["--seed", str(self.seed), *(part for fault in faults for part in ("--inject", fault))]

    def _script(self, folder: Path) -> list[str]:
        return [
            *(str(gpt_example() / "train.py"), "--until", str(self.until), "--global-batch", str(GLOBAL_BATCH)),
            *("--seed", str(self.seed), "--out", str(folder / "digests.json"), "--ids", str(folder / "ids")),
        ]

    def _watch(self, act: Act, folder: Path, job: Job, after: Callable[[int], None] = lambda steps: None) -> None:
        """Waits until the job has ended successfully. Calls `after` repeatedly with the number of steps so far."""
        files = RunFiles(folder / "run")
        scene = act.scene = Scene(self.until)

        def look() -> int | None:
            code = job.process.poll()  # first, so what it wrote before its end is still read
            news = files.poll()
            scene.read(news)
            after(scene.step)
            self.show.update(act, changed=bool(news))
            return code

        code = wait_for(f"end of the {act.name} run", None, TIMEOUT_S, look)
        if code != 0:
            raise BenchError(
                f"the {act.name} run ended with exit code {code}; {job.log} ends with:\n{job.last_lines()}"
            )
