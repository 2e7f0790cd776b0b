"""The job with faults of `keepstep bench data`: times the first batch of the first step of each entry.

The time runs from when `run.steps` returned the step until the rank has its tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import keepstep
from keepstep.data import TokenDataset

if TYPE_CHECKING:
    from keepstep import Run


def build(prefix: str) -> keepstep.State:
    model = torch.nn.Linear(32, 1)
    state = keepstep.State(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1e-3))
    return state.with_unprotected(data=TokenDataset(prefix, 2048))


@keepstep.recoverable
def train(run: Run, chosen: argparse.Namespace) -> None:
    state = run.setup(lambda: build(chosen.prefix))
    replica = run.ddp(state.model)
    first = True
    for step in run.steps(state.data, global_batch=16 * run.world_size, micro_batch=8, last_step=chosen.until):
        began = time.perf_counter()
        for tokens in step:
            if first:
                note = {
                    "ms": 1e3 * (time.perf_counter() - began),
                    "generation": run.generation,
                    "entry": run.entry,
                    "step": step.number,
                }
                with open(Path(chosen.out, f"{os.getpid()}.jsonl"), "a") as out:
                    out.write(json.dumps(note) + "\n")
                first = False
            step.backward(replica(tokens[:, :32].float() / 256).square().mean())
        step.commit(state.optimizer.step)


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--prefix", required=True)
    options.add_argument("--out", required=True)
    options.add_argument("--until", type=int, required=True)
    train(options.parse_args())
