"""Trains a small GPT so that any rank may die at any instant without a lost step.

    keepstep run --nproc-per-node 4 --spares 1 --journal run examples/gpt/train.py --until 200

torchrun_train.py is the same script before keepstep.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import keepstep
import options
from model import next_byte_loss
from text import Text

if TYPE_CHECKING:
    from keepstep import Run


class SampleLog:
    """One line per step this process began; one write each, so that a killed process leaves whole lines.

    A redone step is there once per generation: what counts is the newest generation that began it.
    """

    def __init__(self, folder: Path | None) -> None:
        self._file = -1
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(folder / f"{os.getpid()}.jsonl", flags, 0o644)

    def write(self, step: int, rank: int, generation: int, ids: list[int]) -> None:
        if self._file >= 0:
            line = {"step": step, "rank": rank, "generation": generation, "ids": ids}
            os.write(self._file, (json.dumps(line) + "\n").encode())

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)


def build(chosen: argparse.Namespace) -> keepstep.State:
    """Built once per process, before it has a rank."""
    trained = options.build(chosen)
    state = keepstep.State(model=trained.model, optimizer=trained.optimizer, schedule=trained.schedule)
    return state.with_unprotected(text=Text(chosen.context, chosen.text_mib << 20))


@keepstep.recoverable
def train(run: Run, chosen: argparse.Namespace) -> None:
    state = run.setup(lambda: build(chosen))
    model, optimizer, schedule = state.model, state.optimizer, state.schedule
    replica = run.ddp(model, reproducible=chosen.reproducible)
    samples = SampleLog(chosen.ids)
    try:
        for step in run.steps(
            state.text, global_batch=chosen.global_batch, micro_batch=chosen.micro_batch, last_step=chosen.until
        ):
            samples.write(step.number, run.rank, run.generation, step.sample_ids)
            for tokens, targets in step:
                step.backward(next_byte_loss(replica(tokens), targets))
            step.commit(optimizer.step, schedule.step)
            step.log(loss=step.loss, learning_rate=schedule.get_last_lr()[0])
    finally:
        samples.close()
    if chosen.out is not None and run.rank == 0:
        options.write_digests(chosen.out, model.state_dict())


if __name__ == "__main__":
    train(options.parse("Train a byte-level GPT under keepstep."))
