"""``keepstep bench data``: batches of tokens, how many a second, and how soon after a start or a fault.

The corpus is the Python standard library's sources, a token a byte in uint16, again and again until it is as long as
wanted. Sides take turns, each in a process of its own with one computing thread; medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from keepstep.bench.data import corpus as corpora
from keepstep.bench.data import first_batch, rates
from keepstep.bench.data import memory as memory_use
from keepstep.bench.data import redone as redone_steps
from keepstep.bench.data.torchdata_peer import TORCHDATA
from keepstep.bench.harness.arguments import count, numbers
from keepstep.bench.harness.environment import keepstep_command, machine
from keepstep.bench.harness.waiting import progress_bar

AGAINST = ("torchdata", "dataloader")


def _against(text: str) -> list[str]:
    chosen = text.split(",")
    if unknown := set(chosen) - set(AGAINST):
        raise argparse.ArgumentTypeError(f"'{sorted(unknown)[0]}' is none of {', '.join(AGAINST)}")
    return chosen


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="keepstep bench data", description=__doc__)
    parser.add_argument(
        "--against", type=_against, default=[], help="torchdata, dataloader, or both, separated by a comma"
    )
    parser.add_argument("--mib", type=count, default=256, help="size of the corpus's .bin file (default %(default)s)")
    parser.add_argument("--batches", type=numbers, default="8,64", help="samples a batch (default %(default)s)")
    parser.add_argument("--rounds", type=count, default=3, help="turns of each side (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of one turn (default %(default)s)")
    parser.add_argument("--workers", type=count, default=2, help="of the DataLoaders (default %(default)s)")
    parser.add_argument(
        "--consumed", type=numbers, default="10000,1000000,1000000000",
        help="samples consumed before the first batch that is timed (default %(default)s)",
    )  # fmt: skip
    parser.add_argument("--kills", type=int, default=5, help="for the batch of a redone step (default %(default)s)")
    parser.add_argument("--folder", type=Path, help="where the corpus is written (default: a temporary one)")
    parser.add_argument("--json", action="store_true", help="print the JSON object only")
    return parser


def _measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    load_before = os.getloadavg()[0]
    dataloader, torchdata = "dataloader" in options.against, "torchdata" in options.against
    with progress_bar() as bar:
        stages = bar.add_task("keepstep bench data", total=6, note="corpus")
        corpus = corpora.write(folder / "corpus", options.mib << 20)
        bar.update(stages, completed=1, note="tokens per second, warm")
        warm = rates.measure(corpus, options, dataloader, cold=False)
        bar.update(stages, completed=2, note="tokens per second, cold")
        cold = rates.measure(corpus, options, dataloader, cold=True)
        bar.update(stages, completed=3, note="first batch")
        first = first_batch.measure(corpus, options, dataloader, torchdata)
        bar.update(stages, completed=4, note="memory")
        memory = memory_use.measure(corpus)
        bar.update(stages, completed=5, note="redone steps")
        redone = redone_steps.measure(corpus, options.kills)
        bar.update(stages, completed=6, note="")
    ratios = [row["throughput_ratio"] for row in warm if row["throughput_ratio"] is not None]
    return {
        "throughput_ratio": min(ratios, default=None),
        "share_of_memcpy": min(row["share_of_memcpy"] for row in warm if row["dtype"] == rates.OWN_TYPE),
        "warm": warm,
        "cold": cold,
        **first,
        "memory": memory,
        "redone_step": redone,
        "corpus": {"tokens": corpus.tokens, "documents": corpus.documents, "bytes": corpus.bytes},
        "environment": machine() | {"load_before": load_before, "workers": options.workers},
    }


def _print(result: dict[str, Any]) -> None:
    for kind in ("warm", "cold"):
        for row in result[kind]:
            line = f"{kind}, batches of {row['batch']} x {row['sequence_length'] + 1} {row['dtype']}: " + (
                f"{row['keepstep_tokens_per_cpu_s'] / 1e6:.0f} million tokens per second and core"
            )
            if row["throughput_ratio"] is not None:
                line += f", {row['throughput_ratio']:.1f} times the DataLoader's"
            if row["share_of_memcpy"] is not None:
                line += f", {100 * row['share_of_memcpy']:.0f}% of a memcpy"
            print(line)
    for row in result["first_batch"]:
        times = [f"{name[:-2]} {'-' if s is None else f'{s:.2f} s'}" for name, s in row.items() if name != "consumed"]
        print(f"first batch after {row['consumed']} samples: {', '.join(times)}")
    memory = result["memory"]
    print(
        f"{memory['ranks']} ranks: {memory['keepstep_copies']:.2f} copies of the corpus in memory, "
        f"{memory['loaded_copies']:.2f} where each loads it"
    )
    redone = result["redone_step"]
    print(f"a redone step's first batch: {redone['median_ms']:.3f} ms, at most {redone['worst_ms']:.3f} ms")


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    keepstep_command()  # report what is missing before the first minute is spent
    if "torchdata" in options.against:
        TORCHDATA.python()
    with tempfile.TemporaryDirectory(prefix="keepstep-bench-", dir=options.folder) as folder:
        result = _measure(options, Path(folder))
    if not options.json:
        _print(result)
    print(json.dumps(result))
    return 0
