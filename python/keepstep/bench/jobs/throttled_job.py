"""A job of `keepstep bench elastic` whose micro-batches sleep, like a GPU that leaves the CPU idle meanwhile."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

import keepstep
from commit_log import CommitLog

if TYPE_CHECKING:
    from keepstep import Run

WIDTH = 128  # 64 KiB of gradients: they should cost the CPU nothing, like a GPU's


class Numbers(torch.utils.data.Dataset[Tensor]):
    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((WIDTH,), index / len(self))


def build() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = torch.nn.Linear(WIDTH, WIDTH)
    return keepstep.State(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01))


@keepstep.recoverable
def train(run: Run, chosen: argparse.Namespace) -> None:
    state = run.setup(build)
    model, optimizer = state.model, state.optimizer
    replica = run.ddp(model)
    commits = CommitLog(chosen.commits)
    try:
        for step in run.steps(Numbers(), global_batch=chosen.micro_batches, micro_batch=1, last_step=1 << 30):
            through = 0.0
            for number, numbers in enumerate(step, 1):
                # Like on a GPU's stream, a micro-batch starts once the previous one is done and the CPU launched it.
                # The CPU is one micro-batch ahead, and waits for the last one before gradients are exchanged.
                before, through = through, max(through, time.monotonic()) + chosen.milliseconds / 1e3
                loss = replica(numbers).square().mean()
                until = through if number == len(step.sample_ids) else before
                time.sleep(max(0.0, until - time.monotonic()))
                step.backward(loss)
            step.commit(optimizer.step)
            commits.write(step.number, run.rank, run.generation, run.world_size)
    finally:
        commits.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--commits", type=Path, required=True)
    parser.add_argument("--micro-batches", type=int, required=True)
    parser.add_argument("--milliseconds", type=float, required=True)
    train(parser.parse_args())
