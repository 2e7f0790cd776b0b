"""Synthetic run directories whose every number is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

STEP_S = 0.2


class RunWriter:
    """Writes journal.jsonl and metrics.jsonl as keepstep's agent does. Times are seconds since the job's start."""

    def __init__(self, directory: Path, world_size: int = 4, mono_at_start: float = 1000.0) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.offset = mono_at_start
        self.generation = 0
        self.write(0.0, "job_started", world_size=world_size, spares=1, script="train.py", version="0.1.0")

    def _append(self, name: str, value: dict[str, Any]) -> None:
        with (self.directory / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(value) + "\n")

    def write(self, t: float, event: str, because: str = "", **fields: Any) -> None:
        line: dict[str, Any] = {"t": t, "mono": self.offset + t, "wall": t, "event": event, "term": 1, "node": 0}
        line |= {"generation": self.generation} | fields
        if because:
            line["because"] = because
        self._append("journal.jsonl", line)

    def commit(self, step: int, t: float, loss: float) -> None:
        mono = self.offset + t
        self._append("metrics.jsonl", {"step": step, "t": t, "mono": mono, "loss": loss, "committed_mono": mono})

    def commits(self, first: int, last: int, start_t: float) -> None:
        """Steps of 200 ms; the first is committed at ``start_t``."""
        for step in range(first, last + 1):
            self.commit(step, start_t + (step - first) * STEP_S, 5.0 / step)

    def prepare(self, t: float, version: int, newcomers: list[int], replaced_by: str) -> None:
        self.generation += 1
        self.write(
            t,
            "generation_prepared",
            version=version,
            ranks=4,
            workers=[0, 1, 2, 3],
            newcomers=newcomers,
            replaced_by=replaced_by,
        )


def run_with_one_kill(directory: Path) -> RunWriter:
    """Rank 2 dies at 3.100 s in step 11; all ranks have step 11 at 3.450 s. Steps 1..10 at 1.2, 1.4, ... 3.0 s."""
    run = RunWriter(directory)
    run.prepare(0.5, 0, [], "start")
    run.write(0.9, "formed", version=0)
    run.write(1.2, "first_commit", step=1, committed_mono=run.offset + 1.2)
    run.commits(1, 10, 1.2)
    run.write(3.1, "injected", "kill:rank=2", worker=2, rank=2, at_mono=run.offset + 3.1)
    run.write(
        3.101,
        "fault_detected",
        "rank 2 (pid 72) is gone",
        worker=2,
        rank=2,
        pid=72,
        detected_by="robust mutex",
        signal=-1,
        exit_code=0,
        kind="death",
        step=11,
    )
    run.write(3.102, "rung", "rank 2 is gone", rung="replace")
    run.write(3.103, "sealed", words="rank 0 open on 11")
    run.write(3.104, "verdict", "rank 0 had not voted", step=11, version=10, verdict="redo")
    run.prepare(3.105, 10, [2], "spare")
    run.write(3.110, "rank_ready", rank=0, worker=0, state="clean", version=10)
    run.write(3.120, "rank_ready", rank=3, worker=3, state="clean", version=10)
    run.write(3.125, "rank_ready", rank=2, worker=4, state="empty", version=0)
    run.write(3.130, "activated", version=10, sources=[0, 1, 3], targets=[2])
    run.write(
        3.148,
        "hydrated",
        rank=2,
        worker=4,
        bytes=3000,
        skipped=0,
        repeated=0,
        seconds=0.015,
        sources=[0, 1, 3],
        bytes_from=[1000, 1000, 1000],
    )
    run.write(3.150, "formed", version=10)
    run.write(3.2, "exit_confirmed", worker=2, pid=72, signal=9, exit_code=0)
    run.write(3.451, "first_commit", step=11, committed_mono=run.offset + 3.45)
    run.commits(11, 20, 3.45)
    return run


def finish(run: RunWriter, t: float) -> None:
    run.write(t, "finished")
    run.write(t, "job_ended", "all ranks returned", exit_code=0)
