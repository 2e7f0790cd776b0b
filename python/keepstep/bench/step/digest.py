"""``keepstep bench digest``: what it costs a step that ranks compare digests of their gradients before they vote.

One job trains the byte GPT of the other benchmarks; each step's time and that of its digest are taken in the same step,
so that whatever else the machine does meets both; CPU times beside, which other processes do not lengthen. The share
depends on how much a rank computes per parameter, so the batch is given with it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from keepstep.bench.harness.arguments import count, numbers
from keepstep.bench.harness.environment import JOBS, job_environment, keepstep_command, machine
from keepstep.bench.harness.processes import Processes
from keepstep.bench.harness.waiting import wait_for_end
from keepstep.bench.harness.workload import CONTEXT

LIMIT_S = 900.0


def measure(world: int, samples: int, micro_batches: int, steps: int) -> dict[str, Any]:
    """One job of `world` ranks, each with `micro_batches` of `samples` per step."""
    with tempfile.TemporaryDirectory(prefix="keepstep-bench-") as folder, Processes() as processes:
        out = Path(folder, "times.json")
        job = processes.start(
            [
                keepstep_command(), "run", "--nproc-per-node", str(world), "--digests", "on", "--digest-every", "0",
                str(JOBS / "digest_job.py"), "--out", str(out), "--samples", str(samples),
                "--micro-batches", str(micro_batches), "--steps", str(steps),
            ],
            job_environment(),
            Path(folder, "log.txt"),
        )  # fmt: skip
        wait_for_end(f"the job of {world} ranks", job, LIMIT_S)
        found = json.loads(out.read_text())
    step_s = statistics.median(found["step_s"])
    digest_s = statistics.median(found["digest_s"])
    state_s = statistics.median(found["state_s"])
    step_cpu_s = statistics.median(found["step_cpu_s"])
    digest_cpu_s = statistics.median(found["digest_cpu_s"])
    return {
        "ranks": world,
        "tokens_per_rank": samples * micro_batches * CONTEXT,
        "gradient_bytes": found["gradient_bytes"],
        "state_bytes": found["state_bytes"],
        "step_s": round(step_s, 6),
        "digest_s": round(digest_s, 6),
        "gb_per_s": round(found["gradient_bytes"] / digest_s / 1e9, 2),
        "share": round(digest_s / step_s, 6),
        "step_cpu_s": round(step_cpu_s, 6),
        "digest_cpu_s": round(digest_cpu_s, 6),
        "cpu_share": round(digest_cpu_s / step_cpu_s, 6),
        "state_s": round(state_s, 6),
        "state_share_every_50": round(state_s / 50 / step_s, 6),
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="keepstep bench digest", description=__doc__)
    parser.add_argument(
        "--worlds", type=numbers, default="2", help="numbers of ranks, with commas (default %(default)s)"
    )
    parser.add_argument(
        "--micro-batches",
        type=numbers,
        default="1,8",
        help="micro-batches of each rank in a step, with commas (default %(default)s)",
    )
    parser.add_argument("--samples", type=count, default=8, help="samples of a micro-batch (default %(default)s)")
    parser.add_argument("--steps", type=count, default=10, help="measured steps (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the JSON object only")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    for world in options.worlds:
        for micro_batches in options.micro_batches:
            row = measure(world, options.samples, micro_batches, options.steps)
            rows.append(row)
            if not options.json:
                print(
                    f"{world} ranks, {row['tokens_per_rank']} tokens each: digest of "
                    f"{row['gradient_bytes'] / 1e6:.1f} MB in {1e3 * row['digest_s']:.2f} ms "
                    f"({row['gb_per_s']:.1f} GB/s), {100 * row['share']:.2f}% of a step of "
                    f"{1e3 * row['step_s']:.0f} ms ({100 * row['cpu_share']:.2f}% of its CPU time)"
                )
    print(json.dumps({"steps": rows, "environment": machine()}))
    return 0
