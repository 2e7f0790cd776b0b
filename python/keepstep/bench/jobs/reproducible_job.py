"""The job of `keepstep bench reproducible`: the same steps with DDP and with both modes of Replicate, in turns.

A plain script under ``keepstep run``. Rank 0 writes one JSON file: for each way of synchronizing and each number of
micro-batches per rank, the seconds of every measured step (forward, backward, synchronization; without the optimizer).
After each turn it appends one byte to the file ``--turns``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gpt_setup
from keepstep.torch import Replicate
from model import next_byte_loss

WAYS = ("ddp", "replicate", "reproducible")


def step(way: str, wrapper: DistributedDataParallel | Replicate, batches: list[torch.Tensor]) -> float:
    dist.barrier()
    began = time.perf_counter()
    if isinstance(wrapper, Replicate) and wrapper.reproducible:
        wrapper.begin_step(len(batches) * dist.get_world_size())
    for index, batch in enumerate(batches):
        last = index == len(batches) - 1 or way == "reproducible"
        with contextlib.nullcontext() if last else wrapper.no_sync():
            loss = next_byte_loss(wrapper(batch[:, :-1]), batch[:, 1:])
            loss.backward()
    seconds = time.perf_counter() - began
    wrapper.zero_grad(set_to_none=True)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--turns", type=Path, required=True)
    parser.add_argument("--micro-batches", required=True, help="numbers per rank, with commas")
    parser.add_argument("--rounds", type=int, required=True)
    options = parser.parse_args()
    dist.init_process_group("keepstep")
    model = gpt_setup.build(0).model
    results: dict[str, dict[str, list[float]]] = {}
    for count in (int(part) for part in options.micro_batches.split(",")):
        batches = [torch.randint(0, 256, (4, model.config.context + 1)) for _ in range(count)]
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        for round_ in range(options.rounds + 1):  # the first round is a warm-up
            for way in WAYS:
                wrapper: DistributedDataParallel | Replicate
                if way == "ddp":
                    wrapper = DistributedDataParallel(model, gradient_as_bucket_view=True)
                else:
                    wrapper = Replicate(model, reproducible=way == "reproducible")
                # DDP chooses its buckets in its first step.
                measured = [step(way, wrapper, batches) for _ in range(4)][2:]
                if isinstance(wrapper, Replicate):
                    wrapper.drop()
                del wrapper
                times[way] += measured if round_ else []
                if dist.get_rank() == 0:
                    with options.turns.open("ab") as turns:
                        turns.write(b".")
        results[str(count)] = times
    if dist.get_rank() == 0:
        options.out.write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
