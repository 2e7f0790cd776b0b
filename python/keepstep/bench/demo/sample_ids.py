"""Which samples the committed steps of a run used, from the ranks' files (examples/gpt/train.py --ids)."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class SampleCheck:
    """Over all committed steps, compared with a reference run: `repeated` uses of a sample, and `skipped` samples."""

    repeated: int
    skipped: int


def committed_samples(folder: Path) -> dict[int, list[int]]:
    """The samples of each step, over all ranks, in rank order.

    A redone step was begun in several generations. The newest one committed it, because no rank begins a committed
    step again.
    """
    begun: dict[int, dict[int, dict[int, list[int]]]] = defaultdict(lambda: defaultdict(dict))
    for path in folder.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            found = json.loads(line)
            begun[found["step"]][found["generation"]][found["rank"]] = found["ids"]
    committed = {}
    for step, by_generation in begun.items():
        ranks = by_generation[max(by_generation)]
        committed[step] = [sample for rank in sorted(ranks) for sample in ranks[rank]]
    return committed


def check_samples(folder: Path, reference: Path, until: int, global_batch: int) -> SampleCheck:
    """Compares steps 1..`until` with the reference run of the same seed, which must itself be complete."""
    ours, theirs = committed_samples(folder), committed_samples(reference)
    repeated = skipped = 0
    for step in range(1, until + 1):
        expected, used = Counter(theirs.get(step, [])), Counter(ours.get(step, []))
        if expected.total() != global_batch:
            raise ValueError(f"the reference run logged {expected.total()} samples of step {step}, not {global_batch}")
        repeated += (used - expected).total()
        skipped += (expected - used).total()
    return SampleCheck(repeated, skipped)
