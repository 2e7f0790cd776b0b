"""``keepstep bench allreduce``: all_reduce of fp32 tensors within one machine, against Gloo in the same processes.

Both backends take turns in every round, so that what disturbs one disturbs the other; a figure is the median over the
rounds of the slowest rank's time. ``share_of_limit`` says how near that is to what the memory allows: the bytes that an
all_reduce of ordinary tensors must move, divided by the time and by the bandwidth of a STREAM triad that as many
processes run at once.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from keepstep.bench.harness.arguments import count, numbers
from keepstep.bench.harness.environment import JOBS, BenchError

JOB = JOBS / "allreduce_job.py"
SIZES = "4096,65536,1048576,16777216,67108864"


def bytes_moved(size: int, ranks: int) -> float:
    """By all ranks together: each reads its part of every rank's tensor and writes the sum; then it reads the other
    ranks' sums and writes them into its tensor."""
    others = size * (ranks - 1) / ranks
    return ranks * ((size + size / ranks) + 2 * others)


def measure(ranks: int, options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    processes = [
        subprocess.Popen(
            [
                sys.executable, str(JOB), "--store", str(folder / f"store-{ranks}"), "--rank", str(rank),
                "--world", str(ranks), "--sizes", options.sizes, "--rounds", str(options.rounds),
                "--seconds", str(options.seconds), "--out", str(folder / f"{ranks}-{rank}.json"),
            ],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(ranks)
    ]  # fmt: skip
    try:
        codes = [process.wait() for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(codes):
        raise BenchError(f"a rank ended with exit code {max(codes, key=abs)}")
    results = [json.loads((folder / f"{ranks}-{rank}.json").read_text()) for rank in range(ranks)]
    bandwidth = sum(result["triad"] for result in results)
    rows = []
    for number, first in enumerate(results[0]["sizes"]):
        rounds = list(zip(*(result["sizes"][number]["rounds"] for result in results), strict=True))
        ours, gloo = (statistics.median(max(rank[side] for rank in row) for row in rounds) for side in (0, 1))
        moved = bytes_moved(first["bytes"], ranks)
        rows.append(
            {
                "bytes": first["bytes"],
                "ranks": ranks,
                "keepstep_s": ours,
                "gloo_s": gloo,
                "ratio": round(gloo / ours, 2),
                "share_of_limit": round(moved / ours / bandwidth, 3),
                "triad_bytes_per_s": bandwidth,
            }
        )
    return rows


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="keepstep bench allreduce", description=__doc__)
    parser.add_argument("--against", choices=["gloo"], default="gloo", help="the opponent (default %(default)s)")
    parser.add_argument(
        "--ranks", type=numbers, default="2,4", help="numbers of ranks, separated by commas (default %(default)s)"
    )
    parser.add_argument("--sizes", default=SIZES, help="bytes, separated by commas (default %(default)s)")
    parser.add_argument("--rounds", type=count, default=7, help="rounds per size (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.3, help="of one round, roughly (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the JSON object only")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="keepstep-bench-") as folder:
        for ranks in options.ranks:
            for row in measure(ranks, options, Path(folder)):
                rows.append(row)
                if not options.json:
                    print(
                        f"{ranks} ranks, {row['bytes'] / 1024:>8.0f} KiB: {row['keepstep_s'] * 1e3:9.3f} ms, "
                        f"gloo {row['gloo_s'] * 1e3:9.3f} ms, ratio {row['ratio']:6.2f}, "
                        f"{100 * row['share_of_limit']:5.1f}% of the limit",
                        flush=True,
                    )
    print(json.dumps({"sizes": rows, "cpus": os.cpu_count(), "torch": version("torch")}))
    return 0
