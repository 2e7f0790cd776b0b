"""How much memory eight ranks of a node use for one corpus."""

from __future__ import annotations

import json
from typing import Any

from keepstep.bench.data.corpus import Corpus, run_job

RANKS = 8


def measure(corpus: Corpus) -> dict[str, Any]:
    """The sum of all ranks' proportional set sizes: a page shared by n processes counts 1/n in each."""
    found = {}
    for side in ("keepstep", "loaded"):
        lines = run_job("data_memory_job", "--side", side, "--prefix", corpus.prefix, "--ranks", str(RANKS))
        found[side] = json.loads(lines[-1])["pss_bytes"]
    return {
        "ranks": RANKS,
        "corpus_bytes": corpus.bytes,
        "keepstep_pss_bytes": found["keepstep"],
        "loaded_pss_bytes": found["loaded"],
        "keepstep_copies": round(found["keepstep"] / corpus.bytes, 3),
        "loaded_copies": round(found["loaded"] / corpus.bytes, 3),
    }
