"""``keepstep bench reproducible``: what bit-identical results at any world size cost, against DDP in the same run.

One job trains the byte GPT of the other benchmarks; DDP, `keepstep.torch.Replicate` and its reproducible mode take
turns on the same model, so that whatever else the machine does meets all of them alike.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keepstep.bench.harness.arguments import count, numbers
from keepstep.bench.harness.environment import JOBS, job_environment, keepstep_command, machine
from keepstep.bench.harness.processes import Processes
from keepstep.bench.harness.waiting import progress_bar, wait_for_end

LIMIT_S = 900.0
WAYS = 3  # of synchronizing, in the job


def measure(world: int, micro_batches: list[int], rounds: int, progress: Callable[[int], None]) -> list[dict[str, Any]]:
    """One job of `world` ranks; one row for each number of micro-batches. Calls `progress` with the turns done."""
    with tempfile.TemporaryDirectory(prefix="keepstep-bench-") as folder, Processes() as processes:
        out = Path(folder, "times.json")
        turns = Path(folder, "turns")
        turns.touch()
        job = processes.start(
            [
                keepstep_command(), "run", "--nproc-per-node", str(world), str(JOBS / "reproducible_job.py"),
                "--out", str(out), "--turns", str(turns), "--micro-batches", ",".join(map(str, micro_batches)),
                "--rounds", str(rounds),
            ],
            job_environment(),
            Path(folder, "log.txt"),
        )  # fmt: skip
        wait_for_end(f"the job of {world} ranks", job, LIMIT_S, lambda: progress(turns.stat().st_size))
        times = json.loads(out.read_text())
    rows = []
    for per_rank, by_way in times.items():
        seconds = {way: statistics.median(values) for way, values in by_way.items()}
        row = {"ranks": world, "micro_batches_per_rank": int(per_rank)}
        row |= {f"{way}_s": round(value, 6) for way, value in seconds.items()}
        row["ratio"] = round(seconds["reproducible"] / seconds["ddp"], 3)
        row["ratio_replicate"] = round(seconds["replicate"] / seconds["ddp"], 3)
        rows.append(row)
    return rows


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="keepstep bench reproducible", description=__doc__)
    parser.add_argument(
        "--worlds", type=numbers, default="2,4", help="numbers of ranks, with commas (default %(default)s)"
    )
    parser.add_argument(
        "--micro-batches", type=numbers, default="1,4", help="micro-batches per rank, with commas (default %(default)s)"
    )
    parser.add_argument("--rounds", type=count, default=3, help="turns of each, two steps a turn (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the JSON object only")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    turns = WAYS * (options.rounds + 1) * len(options.micro_batches)
    for world in options.worlds:
        with progress_bar() as bar:
            task = bar.add_task(f"{world} ranks", total=turns, note="turns")
            measured = measure(
                world,
                options.micro_batches,
                options.rounds,
                lambda done, bar=bar, task=task: bar.update(task, completed=done),  # type: ignore[misc]
            )
        for row in measured:
            rows.append(row)
            if not options.json:
                print(
                    f"{row['ranks']} ranks, {row['micro_batches_per_rank']} micro-batches each: DDP "
                    f"{1e3 * row['ddp_s']:.1f} ms, Replicate {1e3 * row['replicate_s']:.1f} ms, reproducible "
                    f"{1e3 * row['reproducible_s']:.1f} ms ({row['ratio']:.2f} of DDP)"
                )
    print(json.dumps({"steps": rows, "environment": machine()}))
    return 0
