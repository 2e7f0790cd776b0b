"""How long a rank waits for the first batch of a step that is redone after a death."""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from keepstep.bench.data.corpus import Corpus
from keepstep.bench.harness.environment import JOBS, BenchError, job_environment, keepstep_command
from keepstep.bench.harness.processes import Processes
from keepstep.bench.harness.waiting import wait_for_end

RANKS = 2
STEPS_BETWEEN = 4
LIMIT_S = 300.0


def measure(corpus: Corpus, kills: int) -> dict[str, Any]:
    """One job of two ranks, which are killed alternately in the middle of a step."""
    steps = [STEPS_BETWEEN * (number + 1) for number in range(kills)]
    inject = [
        part
        for number, step in enumerate(steps)
        for part in ("--inject", f"kill:rank={number % RANKS},step={step},phase=backward")
    ]
    with tempfile.TemporaryDirectory(prefix="keepstep-bench-") as folder, Processes() as processes:
        job = processes.start(
            [
                keepstep_command(), "run", "--nproc-per-node", str(RANKS), "--spares", "1", *inject,
                str(JOBS / "data_redone_job.py"), "--prefix", corpus.prefix, "--out", folder,
                "--until", str(steps[-1] + STEPS_BETWEEN),
            ],
            job_environment(),
            Path(folder, "log.txt"),
        )  # fmt: skip
        wait_for_end("the job with faults", job, LIMIT_S)
        lines = [json.loads(line) for path in Path(folder).glob("*.jsonl") for line in path.read_text().splitlines()]
    times = [line["ms"] for line in lines if line["generation"] > 1]
    if len(times) != RANKS * kills:
        raise BenchError(f"{kills} kills of {RANKS} ranks gave {len(times)} redone batches")
    newcomers = [line["ms"] for line in lines if line["generation"] > 1 and line["entry"] == "replacement"]
    return {
        "kills": kills,
        "batches": len(times),
        "median_ms": round(statistics.median(times), 4),
        "worst_ms": round(max(times), 4),
        "newcomers_median_ms": round(statistics.median(newcomers), 4),
    }
