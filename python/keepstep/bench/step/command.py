"""``keepstep bench step``: what the vote, the heartbeat and the journal add to a step.

Ranks sleep instead of computing, as a GPU step leaves the CPU idle; with more computing ranks than cores one would
measure the scheduler. Votes arrive spread over 5 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from keepstep.bench.harness.arguments import count, numbers
from keepstep.bench.harness.environment import JOBS, BenchError, keepstep_command

STEP_MS = 200.0  # `share` is relative to a step of this length
JOB = JOBS / "step_job.py"


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def measure(command: str, world: int, steps: int) -> dict[str, float]:
    """One job of `world` ranks; times in microseconds."""
    with tempfile.TemporaryDirectory(prefix="keepstep-bench-") as folder:
        job = [
            *(command, "run", "--nproc-per-node", str(world), "--journal", f"{folder}/journal", str(JOB)),
            *("--out", folder, "--steps", str(steps)),
        ]
        code = subprocess.run(job).returncode
        if code != 0:
            raise BenchError(f"the job of {world} ranks ended with exit code {code}")
        ranks: list[list[dict[str, Any]]] = [
            json.loads(Path(folder, f"rank{rank}.json").read_text()) for rank in range(world)
        ]
    latencies, own, vote_cpu, process_cpu = [], [], [], []
    for rows in zip(*ranks, strict=True):
        last_vote = max(row["voted_ns"] for row in rows)
        latency = (max(row["decided_ns"] for row in rows) - last_vote) / 1e3
        latencies.append(latency)
        # The last rank waits for no other: its time in keepstep is the cost of the step.
        last = max(rows, key=lambda row: row["voted_ns"])
        own.append(last["own_ns"] / 1e3 + latency)
        vote_cpu += [row["vote_cpu_ns"] / 1e3 for row in rows]
        process_cpu += [row["process_cpu_ns"] / 1e3 for row in rows]
    return {
        "decision_us": round(statistics.median(latencies), 2),
        "decision_p99_us": round(percentile(latencies, 0.99), 2),
        "vote_cpu_us": round(statistics.median(vote_cpu), 2),
        "vote_cpu_p99_us": round(percentile(vote_cpu, 0.99), 2),
        "cpu_per_rank_step_us": round(statistics.median(process_cpu), 2),
        "step_us": round(statistics.median(own), 2),
        "share": round(statistics.median(own) / 1e3 / STEP_MS, 6),
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="keepstep bench step", description=__doc__)
    parser.add_argument(
        "--worlds", type=numbers, default="1,2,4,8", help="numbers of ranks, separated by commas (default %(default)s)"
    )
    parser.add_argument("--steps", type=count, default=200, help="measured steps per world (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the JSON object only")
    options = parser.parse_args(arguments)
    results: dict[str, Any] = {}
    command = keepstep_command()
    for world in options.worlds:
        figures = results[str(world)] = measure(command, world, options.steps)
        if not options.json:
            print(
                f"{world} ranks: last vote to everyone's decision {figures['decision_us']:.1f} us "
                f"(p99 {figures['decision_p99_us']:.1f}), CPU per vote {figures['vote_cpu_us']:.1f} us, "
                f"share of a {STEP_MS:.0f} ms step {100 * figures['share']:.3f}%"
            )
    share = max(figures["share"] for figures in results.values())
    print(json.dumps({"worlds": results, "share": share, "step_ms": STEP_MS, "cpus": os.cpu_count()}))
    return 0
