"""A process that needs its first batch after a number of consumed samples; prints when it got it (CLOCK_MONOTONIC)."""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from data_rates_job import Memmap


def of_keepstep(chosen: argparse.Namespace) -> Iterator[Any]:
    from keepstep.data import TokenDataset
    from keepstep.torch.step.batch_plan import BatchPlan

    plan = BatchPlan(
        TokenDataset(chosen.prefix, chosen.sequence_length), chosen.batch, chosen.batch, True, None, 7, 0, 1
    )
    for step in itertools.count(chosen.consumed // chosen.batch + 1):
        yield plan.batch(plan.samples(step))


def of_dataloader(chosen: argparse.Namespace) -> Iterator[Any]:
    """The order follows from the seed; consumed samples are loaded again and dropped."""
    loader = torch.utils.data.DataLoader(
        Memmap(chosen.prefix, chosen.sequence_length, "int64"), chosen.batch, shuffle=True,
        generator=torch.Generator().manual_seed(7), num_workers=chosen.workers,
    )  # fmt: skip
    return itertools.islice(iter(loader), chosen.consumed // chosen.batch, None)


def of_stateful_dataloader(chosen: argparse.Namespace) -> Iterator[Any]:
    """torchdata's loader, resumed from a state that another process saved after consuming as many."""
    from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-not-found, unused-ignore]

    loader = StatefulDataLoader(
        Memmap(chosen.prefix, chosen.sequence_length, "int64"), chosen.batch, shuffle=True,
        generator=torch.Generator().manual_seed(7), num_workers=chosen.workers,
    )  # fmt: skip
    if chosen.resume:
        loader.load_state_dict(torch.load(chosen.resume, weights_only=True))
        return iter(loader)
    batches = itertools.islice(iter(loader), chosen.consumed // chosen.batch, None)
    first = next(batches)
    torch.save(loader.state_dict(), chosen.save)
    return itertools.chain([first], batches)


SIDES: dict[str, Callable[[argparse.Namespace], Iterator[Any]]] = {
    "keepstep": of_keepstep,
    "dataloader": of_dataloader,
    "stateful_dataloader": of_stateful_dataloader,
}


def main(chosen: argparse.Namespace) -> None:
    imported = time.monotonic()
    torch.set_num_threads(1)
    batch = next(SIDES[chosen.side](chosen))
    assert batch.shape == (chosen.batch, chosen.sequence_length + 1)
    print(json.dumps({"imported_mono": imported, "first_batch_mono": time.monotonic()}), flush=True)


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--side", choices=SIDES, required=True)
    options.add_argument("--prefix", required=True)
    options.add_argument("--consumed", type=int, required=True)
    options.add_argument("--batch", type=int, required=True)
    options.add_argument("--sequence-length", type=int, required=True)
    options.add_argument("--workers", type=int, required=True)
    options.add_argument("--save", type=Path)
    options.add_argument("--resume", type=Path)
    main(options.parse_args())
