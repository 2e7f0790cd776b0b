"""``keepstep bench lora``: adapters on a frozen base, beside the whole model, under keepstep and under torchrun.

One rank is killed under keepstep. Sent: the bytes that its successor pulls. Copied, in a second job: a rank's version
in the agents' memory (`memory_every_steps`). Saved: a checkpoint's files. Memory: the proportional set size of the
job's processes, launcher and spare included; what several share counts once. The model is a Llama made from its
configuration, the adapters are PEFT's. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from keepstep.bench.harness.arguments import count
from keepstep.bench.harness.environment import JOBS, BenchError, job_environment, keepstep_command, machine
from keepstep.bench.harness.keepstep_job import KeepstepJob
from keepstep.bench.harness.processes import Job, Processes, descendants
from keepstep.bench.harness.waiting import progress_bar, wait_for
from keepstep.bench.harness.workload import Workload
from keepstep.bench.recovery.torchrun_job import Torchrun
from keepstep.report.journal import read_objects

LIMIT_S = 600.0
STEPS_AFTER = 10  # the kill, or the start
WITH_MOMENTS = 3  # a version of this step, and the one before it in memory, has the optimizer's state


class Case(NamedTuple):
    launcher: str
    train: str
    mapped: bool

    @property
    def name(self) -> str:
        return f"{self.launcher}-{self.train}{'-mapped' if self.mapped else ''}"

    def text(self) -> str:
        what = "the whole model" if self.train == "all" else "adapters"
        return f"{what} under {self.launcher}{', base mapped' if self.mapped else ''}"


CASES = (
    Case("keepstep", "adapters", True),
    Case("keepstep", "adapters", False),
    Case("keepstep", "all", False),
    Case("torchrun", "adapters", False),
    Case("torchrun", "all", False),
)


def _script(case: Case, folder: Path, commits: Path, width: int) -> list[str]:
    words = [str(JOBS / "lora_job.py"), "--launcher", case.launcher, "--train", case.train, "--width", str(width)]
    words += ["--until", "1000000", "--commits", str(commits), "--out", str(folder)]
    return [*words, "--map", str(folder / "base.pt")] if case.mapped else words


def _memory(job: Job) -> int:
    total = 0
    for pid in (job.process.pid, *descendants(job.process.pid)):
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue  # it ended
        total += sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return total * 1024


def _file_bytes(saved: Path) -> int:
    """Of a file, or of all files in a folder."""
    return sum(path.stat().st_size for path in (saved, *saved.rglob("*")) if path.is_file())


def _newest_checkpoint(folder: Path, after: int) -> Path | None:
    """A complete one of a later step than `after`."""
    found = {}
    for path in folder.glob("step-*"):
        digits = path.name.removeprefix("step-")
        if digits.isdigit() and int(digits) > after and (path.is_file() or (path / ".metadata").exists()):
            found[int(digits)] = path
    return found[max(found)] if found else None


class _Bench:
    def __init__(self, chosen: argparse.Namespace, processes: Processes) -> None:
        self.chosen = chosen
        self.processes = processes
        self.workload = Workload(world_size=chosen.ranks)

    def measure(self, case: Case) -> dict[str, Any]:
        """Of one case; in bytes."""
        folder = self.chosen.out / case.name
        if case.launcher == "keepstep":
            found = self._ours(case, folder) | {
                "copied_bytes": self._copied(case, folder.with_name(f"{case.name}-copies"))
            }
        else:
            found = self._theirs(case, folder)
        sizes: dict[str, Any] = json.loads((folder / "sizes.json").read_text())
        return case._asdict() | sizes | found

    def _start(self, case: Case, folder: Path, *options: str) -> KeepstepJob:
        width = self.chosen.width

        class LoraJob(KeepstepJob):
            def script(self, until: int) -> list[str]:
                return [*_script(case, folder, self.commits.folder, width), *options]

        job = LoraJob(self.processes, self.workload, folder, 1_000_000)
        wait_for("job with a parked spare", job.job, LIMIT_S, job.ready)
        return job

    def _ours(self, case: Case, folder: Path) -> dict[str, Any]:
        job = self._start(case, folder)
        victim = self.chosen.ranks - 1
        kill = job.kill(victim)
        step = wait_for("recovery", job.job, LIMIT_S, lambda: job.new_step(kill.mono)).step
        wait_for("job with a parked spare", job.job, LIMIT_S, job.ready)
        self._wait_for_step(job, step + STEPS_AFTER)
        saved = wait_for("checkpoint", job.job, LIMIT_S, lambda: _newest_checkpoint(folder / "checkpoints", step))
        found = {
            "sent_bytes": self._sent(job, victim),
            "saved_bytes": _file_bytes(saved),
            "memory_bytes": _memory(job.job),
        }
        job.stop()
        return found

    def _wait_for_step(self, job: KeepstepJob, step: int) -> None:
        def there() -> bool | None:
            job.poll()
            return True if job.commits.commits and job.commits.commits[-1].step >= step else None

        wait_for(f"step {step}", job.job, LIMIT_S, there)

    def _theirs(self, case: Case, folder: Path) -> dict[str, Any]:
        width = self.chosen.width

        class LoraTorchrun(Torchrun):
            def script(self) -> list[str]:
                return _script(case, folder, self.commits.folder, width)

        shutil.rmtree(folder, ignore_errors=True)
        job = LoraTorchrun(self.processes, self.workload, folder, 0)
        wait_for("steps under torchrun", job.job, LIMIT_S, lambda: job.at_step(STEPS_AFTER))
        saved = wait_for("checkpoint", job.job, LIMIT_S, lambda: _newest_checkpoint(folder / "checkpoints", 0))
        found = {
            "saved_bytes": _file_bytes(saved),
            "memory_bytes": _memory(job.job),
        }
        job.stop()
        return found

    def _sent(self, job: KeepstepJob, victim: int) -> int:
        lines, _ = read_objects(job.run / "journal.jsonl")
        pulled = [line for line in lines if line["event"] == "hydrated" and line["rank"] == victim]
        return int(pulled[-1]["bytes"])

    def _copied(self, case: Case, folder: Path) -> int:
        job = self._start(case, folder, "--copies")
        self._wait_for_step(job, WITH_MOMENTS)
        copied = wait_for("copy in memory", job.job, LIMIT_S, lambda: self._in_memory(job))
        job.stop()
        return copied

    def _in_memory(self, job: KeepstepJob) -> int | None:
        done = subprocess.run(
            [keepstep_command(), "ckpt", "ls", f"memory://{job.run}", "--json"],
            capture_output=True, text=True, env=job_environment(), timeout=60,
        )  # fmt: skip
        if done.returncode != 0:
            raise BenchError(f"keepstep ckpt ls: {done.stderr}")
        whole = [step for step in json.loads(done.stdout)["checkpoints"] if step["complete"]]
        return max((int(step["bytes"]) // self.chosen.ranks for step in whole), default=None)


def _mb(found: dict[str, Any], name: str) -> str:
    return f"{found[name] / 1e6:.1f} MB" if name in found else "-"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="keepstep bench lora", description=__doc__)
    parser.add_argument("--ranks", type=count, default=2, help="of each job (default %(default)s)")
    parser.add_argument(
        "--width", type=count, default=1024, help="of the model: a multiple of 64 (default %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print the JSON object only")
    parser.add_argument("--out", type=Path, default=Path("bench-lora"), metavar="DIR", help="logs, runs")
    chosen = parser.parse_args(arguments)
    chosen.out.mkdir(parents=True, exist_ok=True)
    keepstep_command()
    if missing := [name for name in ("peft", "transformers") if find_spec(name) is None]:
        raise BenchError(f"{', '.join(missing)} cannot be imported; pip install {' '.join(missing)}")
    load_before = os.getloadavg()[0]
    cases = []
    with Processes() as processes, progress_bar() as bar:
        bench = _Bench(chosen, processes)
        task = bar.add_task("lora", total=len(CASES), note="")
        for case in CASES:
            bar.update(task, note=case.text())
            found = bench.measure(case)
            cases.append(found)
            bar.advance(task)
            if not chosen.json:
                print(
                    f"{case.text()}: sent {_mb(found, 'sent_bytes')}, copied {_mb(found, 'copied_bytes')}, saved "
                    f"{_mb(found, 'saved_bytes')}, memory {_mb(found, 'memory_bytes')}",
                    flush=True,
                )
    environment = machine() | {"ranks": chosen.ranks, "load_before": load_before}
    result = {"cases": cases, "environment": environment}
    (chosen.out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    return 0
