"""Tokens per second, and per second of CPU time: keepstep, numpy.memmap behind a DataLoader, and memcpy."""

from __future__ import annotations

import argparse
import json
import statistics
from typing import Any

from keepstep.bench.data.corpus import Corpus, run_job

SEQUENCE_LENGTH = 2048
OWN_TYPE = "uint16"


Turn = dict[str, Any]


def _turns(
    sides: list[str], corpus: Corpus, batch: int, dtype: str, cold: bool, options: argparse.Namespace
) -> list[Turn]:
    if cold:
        corpus.evict()
    lines = run_job(
        "data_rates_job",
        *("--sides", ",".join(sides), "--prefix", corpus.prefix, "--batch", str(batch), "--dtype", dtype),
        *("--sequence-length", str(SEQUENCE_LENGTH), "--seconds", str(options.seconds)),
        *("--rounds", str(options.rounds), "--workers", str(options.workers), *(["--cold"] if cold else [])),
    )
    return [json.loads(line) for line in lines]


def _row(
    corpus: Corpus, batch: int, dtype: str, dataloader: bool, cold: bool, options: argparse.Namespace
) -> dict[str, Any]:
    sides = ["keepstep", *([] if cold else ["memcpy"]), *(["dataloader"] if dataloader else [])]
    found: list[Turn] = []
    if cold:  # each turn starts with nothing in memory, in a separate process
        for number in range(options.rounds):
            for side in sides if number % 2 == 0 else reversed(sides):
                found += _turns([side], corpus, batch, dtype, cold, options)
    else:
        found = _turns(sides, corpus, batch, dtype, cold, options)
    turns = {side: [turn for turn in found if turn["side"] == side] for side in sides}

    def median(side: str, per: str) -> float | None:
        if side not in turns:
            return None
        return float(statistics.median(turn["tokens"] / turn[per] for turn in turns[side]))

    ours, theirs = median("keepstep", "cpu_s"), median("dataloader", "cpu_s")
    memcpy, wall = median("memcpy", "cpu_s"), median("keepstep", "wall_s")
    theirs_wall = median("dataloader", "wall_s")
    assert ours is not None and wall is not None
    return {
        "batch": batch,
        "sequence_length": SEQUENCE_LENGTH,
        "dtype": dtype,
        "keepstep_tokens_per_cpu_s": round(ours),
        "dataloader_tokens_per_cpu_s": None if theirs is None else round(theirs),
        "memcpy_tokens_per_cpu_s": None if memcpy is None else round(memcpy),
        "keepstep_tokens_per_s": round(wall),
        "dataloader_tokens_per_s": None if theirs_wall is None else round(theirs_wall),
        "throughput_ratio": None if theirs is None else round(ours / theirs, 2),
        "wall_ratio": None if theirs_wall is None else round(wall / theirs_wall, 2),
        "share_of_memcpy": None if memcpy is None else round(ours / memcpy, 3),
        "keepstep_late_batches": sum(turn["late_batches"] for turn in turns["keepstep"]),
        "keepstep_batches": sum(turn["batches"] for turn in turns["keepstep"]),
    }


def measure(corpus: Corpus, options: argparse.Namespace, dataloader: bool, cold: bool) -> list[dict[str, Any]]:
    """A row for each batch size and each token type."""
    dtypes = ["int64"] if cold else ["int64", OWN_TYPE]
    return [_row(corpus, batch, dtype, dataloader, cold, options) for batch in options.batches for dtype in dtypes]
