"""Runs a real job of two nodes with two ranks each on this machine: launcher, zygote, workers, and the data plane."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from keepstep.bench.harness.environment import BenchError
from keepstep.bench.harness.keepstep_nodes import Launchers
from keepstep.bench.harness.processes import Processes
from keepstep.bench.harness.waiting import wait_for_end
from keepstep.doctor.finding import Finding, error, fine, size
from keepstep.doctor.jobs.marks import LOOPBACK, said

RANKS_PER_NODE = 2
LIMIT_S = 240.0  # usually some seconds, but far longer if all CPUs are busy


def environment() -> dict[str, str]:
    """For a job of the doctor: one thread per rank, without the options of the user's own jobs."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "SLURM_"))}
    return mine | {"OMP_NUM_THREADS": "1"}


def loopback(environ: Mapping[str, str]) -> list[Finding]:
    """`environ`: the result of `environment`."""
    with tempfile.TemporaryDirectory(prefix="keepstep-doctor-") as folder, Processes() as processes:
        try:
            launchers = Launchers(
                *(processes, Path(folder), RANKS_PER_NODE, 0),
                *(["--spares", "0", "--max-restarts", "0"], ["-m", "keepstep.doctor.jobs.loopback"], environ),
            )
            first = launchers.jobs[0]
            wait_for_end("the job", first, LIMIT_S, launchers.check)
            (found,) = said(first.log, LOOPBACK)
        except (BenchError, ValueError) as why:
            return [error("loopback", f"a small job on this machine failed: {why}")]
    rates = ", ".join(f"{rate / 1e9:.2f} GB/s over {name}" for name, rate in found["bytes_per_s"].items())
    return [fine("loopback", f"all_reduce of {size(found['bytes'])} between 2 ranks: {rates}; all sums are right")]
