"""The same script of a library under keepstep and under torchrun."""

from __future__ import annotations

from pathlib import Path

from keepstep.bench.harness.commits import CommitReader, median_step_s
from keepstep.bench.harness.environment import JOBS, BenchError, job_environment
from keepstep.bench.harness.keepstep_job import KeepstepJob
from keepstep.bench.harness.processes import Job, Processes
from keepstep.bench.harness.waiting import wait_for_end
from keepstep.bench.recovery.torchrun_job import Torchrun

# Of each library: what says how far a checkpoint is, below the folder of checkpoints.
WHOLE = {
    "transformers": "checkpoint-*/trainer_state.json",
    "accelerate": "checkpoint-*/whole",
    "lightning": "*.ckpt",
}


def script(library: str, launcher: str, until: int, commits: Path) -> list[str]:
    words = [str(JOBS / f"library_{library}.py"), "--launcher", launcher, "--until", str(until)]
    return [*words, "--commits", str(commits)]


def ours(library: str) -> type[KeepstepJob]:
    """Jobs of `library` under ``keepstep run``."""

    class LibraryJob(KeepstepJob):
        def script(self, until: int) -> list[str]:
            return script(library, "keepstep", until, self.commits.folder)

    return LibraryJob


def theirs(library: str) -> type[Torchrun]:
    """Jobs of `library` under torchrun, with a checkpoint every ten steps."""

    class LibraryTorchrun(Torchrun):
        def script(self) -> list[str]:
            words = script(library, "torchrun", 1_000_000, self.commits.folder)
            return [*words, "--checkpoints", str(self.checkpoints)]

        def checkpoint(self) -> int:
            names = [path.relative_to(self.checkpoints).parts[0] for path in self.checkpoints.glob(WHOLE[library])]
            return max((_number(name) for name in names), default=0)

    return LibraryTorchrun


def _number(name: str) -> int:
    """Of ``checkpoint-20``, and of ``step=20.ckpt``."""
    return int("".join(each for each in name if each.isdigit()) or 0)


def torchrun_step_s(processes: Processes, library: str, folder: Path, world_size: int, until: int) -> float:
    """The median step in seconds of an undisturbed job under torchrun, which saves nothing."""
    commits = CommitReader(folder / "commits")
    job: Job = processes.start(
        [*Torchrun.command(["--standalone", "--nproc-per-node", str(world_size)]),
         *script(library, "torchrun", until, commits.folder)],
        job_environment(),
        folder / "torchrun.log",
    )  # fmt: skip
    wait_for_end("the undisturbed run under torchrun", job, 120 + 10.0 * until)
    commits.poll()
    step_s = median_step_s(commits.commits, world_size)
    if step_s is None:
        raise BenchError(f"the undisturbed run under torchrun wrote no steps:\n{job.last_lines()}")
    return step_s
