"""``keepstep bench elastic``: how long a resize interrupts a job, and what a larger world gives.

The pause is the same for every tool: from the last step that all ranks of the old world committed to the first one that
all ranks of the new world committed, less one step, the median of those that the new world made next. Same model, same
batch, same machine, one tool after another; 2 to 4 ranks and back. The last line is one JSON object; times in it are
seconds.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from keepstep._console import Console
from keepstep.bench.elastic.keepstep_elastic import AgentsJob, ElasticJob, ScaledJob
from keepstep.bench.elastic.resizes import STEPS, Resize, add_phases, resizes, summary
from keepstep.bench.elastic.throughput import computing, throttled
from keepstep.bench.elastic.torchrun_elastic import DEFAULTS, TUNED, TorchrunAgents
from keepstep.bench.elastic.words import print_result
from keepstep.bench.harness.arguments import count
from keepstep.bench.harness.commits import median_step_s
from keepstep.bench.harness.environment import JOBS, BenchError, keepstep_command, machine
from keepstep.bench.harness.processes import Processes
from keepstep.bench.harness.waiting import progress_bar, wait_for

SMALL, LARGE = 2, 4
SETTLE_TIMEOUT_S = 180.0
# 4.2 million parameters: with AdamW's two moments they take 50 MB.
LAYERS, WIDTH = 4, 288
GLOBAL_BATCH, MICRO_BATCH = 4, 1
# More computing than communication per rank, like a job that grows.
COMPUTING_BATCH, COMPUTING_MICRO_BATCH = 32, 4
PARTS = ("resize", "throughput")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="keepstep bench elastic", description=__doc__)
    parser.add_argument("--against", choices=["torchrun"], help="measure its elastic restart, too")
    parser.add_argument("--only", choices=PARTS, help="this part (default both)")
    parser.add_argument("--resizes", type=count, default=10, help="of each job of ours, in each direction (default 10)")
    parser.add_argument("--repetitions", type=count, default=3, help="of torchrun's, in each direction (default 3)")
    parser.add_argument("--seconds", type=float, default=8.0, help="at each size, for the throughput (default 8)")
    parser.add_argument("--json", action="store_true", help="print the result only, no table")
    parser.add_argument(
        "--out", type=Path, default=Path("bench-elastic"), metavar="DIR", help="all resizes, logs, runs"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the weights")
    return parser


class _Bench:
    def __init__(self, chosen: argparse.Namespace, processes: Processes) -> None:
        self.chosen = chosen
        self.processes = processes
        self.out: Path = chosen.out
        self.load_before = os.getloadavg()[0]
        self.result: dict[str, Any] = {}

    def _script(self, job: str, *options: str, batch: int = GLOBAL_BATCH) -> list[str]:
        return [
            *(str(JOBS / job), "--global-batch", str(batch), "--seed", str(self.chosen.seed)),
            *("--layers", str(LAYERS), "--width", str(WIDTH), "--until", "1000000", *options),
        ]

    def _resize(self, name: str, start: Callable[[Path], ElasticJob], times: int) -> tuple[ElasticJob, list[Resize]]:
        """Grows and shrinks a job `times` times. Returns its part of the result, without the journal's phases."""
        with progress_bar() as bar:
            task = bar.add_task(name, total=2 * times, note="starts")
            job = start(self.out / name)
            if isinstance(job, ScaledJob) and not isinstance(job, AgentsJob):
                wait_for(f"job of {LARGE} ranks", job.job, SETTLE_TIMEOUT_S, partial(job.settled, LARGE, STEPS))
                job.resize(SMALL)
            wait_for(f"job of {SMALL} ranks", job.job, SETTLE_TIMEOUT_S, partial(job.settled, SMALL, STEPS))
            first = job.worlds.last_mono
            for number, ranks in enumerate([LARGE, SMALL] * times):
                bar.update(task, completed=number, note=f"to {ranks} ranks")
                job.resize(ranks)
                wait_for(f"job of {ranks} ranks", job.job, SETTLE_TIMEOUT_S, partial(job.settled, ranks, STEPS))
            bar.update(task, completed=2 * times, note="done")
            job.stop()
        found = [resize for resize in resizes(job.commits.commits) if resize.before_mono >= first]
        if [resize.after for resize in found] != [LARGE, SMALL] * times:
            raise BenchError(f"{name}: its size changed otherwise than it was told to; see {job.folder}")
        return job, found

    def _keep(self, name: str, job: ElasticJob, found: list[Resize], step_s: dict[int, float]) -> None:
        with (self.out / "resizes.jsonl").open("a", encoding="utf-8") as file:
            for resize in found:
                file.write(json.dumps({"tool": name} | asdict(resize)) + "\n")
        self.result[name] = summary(found) | {"step_s": {str(ranks): seconds for ranks, seconds in step_s.items()}}

    def _step_s(self, job: ElasticJob) -> dict[int, float]:
        return {ranks: median_step_s(job.commits.commits, ranks) or 0.0 for ranks in (SMALL, LARGE)}

    def keepstep(self, name: str, kind: type[ScaledJob]) -> None:
        script = self._script("keepstep_gpt.py", "--micro-batch", str(MICRO_BATCH))
        job, found = self._resize(name, lambda folder: kind(self.processes, folder, script, LARGE), self.chosen.resizes)
        assert isinstance(job, ScaledJob)
        step_s = self._step_s(job)
        lines = job.journal()
        add_phases(found, lines)
        self._keep(name, job, found, step_s)
        self.result[name]["state_bytes"] = max(
            (line["bytes"] + line["skipped"] for line in lines if line["event"] == "hydrated"), default=0
        )

    def torchrun(self, name: str, conf: dict[str, str]) -> None:
        script = self._script("torchrun_elastic_gpt.py")
        job, found = self._resize(
            name,
            lambda folder: TorchrunAgents(self.processes, folder, script, LARGE, conf),
            self.chosen.repetitions,
        )
        assert isinstance(job, TorchrunAgents)
        self._keep(name, job, found, self._step_s(job))
        self.result[name] |= {"checkpoint_bytes": job.checkpoint_bytes(), "rdzv_conf": conf}

    def throughput(self) -> None:
        script = self._script("keepstep_gpt.py", "--micro-batch", str(COMPUTING_MICRO_BATCH), batch=COMPUTING_BATCH)
        with progress_bar() as bar:
            task = bar.add_task("throughput", total=None, note="")
            note = lambda words: bar.update(task, note=words)  # noqa: E731
            seconds = self.chosen.seconds
            self.result["throughput"] = {
                "throttled": throttled(self.processes, self.out / "throttled", seconds, note),
                "computing": computing(self.processes, self.out / "computing", script, seconds, note),
            }

    def finish(self) -> dict[str, Any]:
        for name, field in (("torchrun", "ratio"), ("torchrun_defaults", "ratio_defaults")):
            if name in self.result and self.result["keepstep"]["pause_s"] > 0:
                self.result[field] = self.result[name]["pause_s"] / self.result["keepstep"]["pause_s"]
        self.result["environment"] = machine() | {
            "worlds": [SMALL, LARGE],
            "global_batch": GLOBAL_BATCH,
            "micro_batch": MICRO_BATCH,
            "seed": self.chosen.seed,
            "load_before": self.load_before,
            "load_after": os.getloadavg()[0],
        }
        return self.result


def main(arguments: list[str]) -> int:
    chosen = _parser().parse_args(arguments)
    keepstep_command()
    chosen.out.mkdir(parents=True, exist_ok=True)
    (chosen.out / "resizes.jsonl").unlink(missing_ok=True)
    with Processes() as processes:
        bench = _Bench(chosen, processes)
        if chosen.only != "throughput":
            bench.keepstep("keepstep", AgentsJob)
            bench.keepstep("keepstep_scale", ScaledJob)
            if chosen.against == "torchrun":
                bench.torchrun("torchrun", TUNED)
                bench.torchrun("torchrun_defaults", DEFAULTS)
        if chosen.only != "resize":
            bench.throughput()
        result = bench.finish()
    (chosen.out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    if not chosen.json:
        print_result(result, Console())
    print(json.dumps(result))
    return 0
