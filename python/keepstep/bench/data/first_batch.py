"""Time from the start of a process to its first batch, after a given number of consumed samples."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from keepstep.bench.data.corpus import Corpus, run_job
from keepstep.bench.data.torchdata_peer import TORCHDATA

SEQUENCE_LENGTH = 64  # short, so an epoch has more than a million samples
BATCH = 32
# The limit for the others: they go through all consumed samples, and hold an epoch's order in memory.
MAX_REPLAYED = 10_000_000


def _run(side: str, corpus: Corpus, consumed: int, options: argparse.Namespace, *more: str) -> dict[str, float]:
    """Seconds from just before the process start until its imports were done, and until its first batch."""
    python = TORCHDATA.python() if side == "stateful_dataloader" else sys.executable
    began = time.monotonic()
    lines = run_job(
        "data_first_batch_job",
        *("--side", side, "--prefix", corpus.prefix, "--consumed", str(consumed), "--batch", str(BATCH)),
        *("--sequence-length", str(SEQUENCE_LENGTH), "--workers", str(options.workers), *more),
        python=python,
    )
    found = json.loads(lines[-1])
    return {"imports_s": found["imported_mono"] - began, "first_batch_s": found["first_batch_mono"] - began}


def measure(corpus: Corpus, options: argparse.Namespace, dataloader: bool, torchdata: bool) -> dict[str, Any]:
    """`first_batch`, with a breakdown of the times."""
    epoch = (corpus.tokens - 1) // SEQUENCE_LENGTH
    rows: list[dict[str, Any]] = []
    imports: list[float] = []
    left_out = []
    for consumed in options.consumed:
        ours = min(
            (_run("keepstep", corpus, consumed, options) for _ in range(3)), key=lambda run: run["first_batch_s"]
        )
        imports.append(ours["imports_s"])
        row: dict[str, Any] = {
            "consumed": consumed,
            "keepstep_s": round(ours["first_batch_s"], 3),
            "dataloader_s": None,
            "stateful_dataloader_s": None,
        }
        if consumed <= min(MAX_REPLAYED, epoch - BATCH):
            if dataloader:
                row["dataloader_s"] = round(_run("dataloader", corpus, consumed, options)["first_batch_s"], 3)
            if torchdata:
                state = str(Path(f"{corpus.prefix}.state-{consumed}"))
                _run("stateful_dataloader", corpus, consumed, options, "--save", state)
                resumed = _run("stateful_dataloader", corpus, consumed, options, "--resume", state)
                row["stateful_dataloader_s"] = round(resumed["first_batch_s"], 3)
        else:
            left_out.append(consumed)
        rows.append(row)
    return {
        "first_batch": rows,
        "first_batch_imports_s": round(min(imports), 3),
        "first_batch_note": f"an epoch has {epoch} samples of {SEQUENCE_LENGTH + 1} tokens; not run with the others: "
        f"{left_out or 'nothing'} (they replay what was consumed, and hold the order of an epoch in memory)",
    }
