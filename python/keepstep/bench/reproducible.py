"""``keepstep bench reproducible``: what bits that no number of ranks changes cost, against DDP in the same run.

One job trains the byte GPT of the other benchmarks; DDP, `keepstep.torch.Replicate` and its reproducible mode take
turns on the same model, so that whatever else the machine does meets all of them alike.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from keepstep.bench.environment import JOBS, BenchError, job_environment, keepstep_command, machine
from keepstep.bench.processes import Processes

LIMIT_S = 900.0


def measure(world: int, micro_batches: str, rounds: int) -> list[dict[str, Any]]:
    """One job of `world` ranks; one row for each number of micro-batches."""
    with tempfile.TemporaryDirectory(prefix="keepstep-bench-") as folder, Processes() as processes:
        out = Path(folder, "times.json")
        log = Path(folder, "log.txt")
        job = processes.start(
            [
                keepstep_command(), "run", "--nproc-per-node", str(world), str(JOBS / "reproducible_job.py"),
                "--out", str(out), "--micro-batches", micro_batches, "--rounds", str(rounds),
            ],
            job_environment(),
            log,
        )  # fmt: skip
        if job.wait(LIMIT_S) != 0:
            raise BenchError(f"the job of {world} ranks failed:\n{log.read_text()[-4000:]}")
        times = json.loads(out.read_text())
    rows = []
    for count, by_way in times.items():
        seconds = {way: statistics.median(values) for way, values in by_way.items()}
        row = {"ranks": world, "micro_batches_per_rank": int(count)}
        row |= {f"{way}_s": round(value, 6) for way, value in seconds.items()}
        row["ratio"] = round(seconds["reproducible"] / seconds["ddp"], 3)
        row["ratio_replicate"] = round(seconds["replicate"] / seconds["ddp"], 3)
        rows.append(row)
    return rows


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="keepstep bench reproducible", description=__doc__)
    parser.add_argument("--worlds", default="2,4", help="numbers of ranks, with commas (default %(default)s)")
    parser.add_argument(
        "--micro-batches", default="1,4", help="micro-batches per rank, with commas (default %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=8, help="turns of each, two steps a turn (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the JSON object only")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    try:
        for world in (int(part) for part in options.worlds.split(",")):
            for row in measure(world, options.micro_batches, options.rounds):
                rows.append(row)
                if not options.json:
                    print(
                        f"{row['ranks']} ranks, {row['micro_batches_per_rank']} micro-batches each: DDP "
                        f"{1e3 * row['ddp_s']:.1f} ms, Replicate {1e3 * row['replicate_s']:.1f} ms, reproducible "
                        f"{1e3 * row['reproducible_s']:.1f} ms ({row['ratio']:.2f} of DDP)"
                    )
    except BenchError as error:
        print(f"keepstep bench reproducible: {error}", file=sys.stderr)
        return 1
    print(json.dumps({"steps": rows, "environment": machine()}))
    return 0
