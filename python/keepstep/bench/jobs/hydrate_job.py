"""The job of `keepstep bench hydrate`: state of a given size, and steps that leave the CPU idle."""

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

WIDTH = 16


class Numbers(torch.utils.data.Dataset[Tensor]):
    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((WIDTH,), index / len(self))


class Ballast(torch.nn.Module):
    """Protected bytes that no computation uses, in tensors as large as those of a model."""

    def __init__(self, total: int, each: int) -> None:
        super().__init__()
        for number in range(0, total, each):
            size = min(each, total - number) // 4
            self.register_buffer(f"part{number // each}", torch.full((size,), float(number)))


def build(chosen: argparse.Namespace) -> keepstep.State:
    torch.manual_seed(1)
    model = torch.nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return keepstep.State(model=model, optimizer=optimizer, ballast=Ballast(chosen.bytes, chosen.tensor_bytes))


@keepstep.recoverable
def train(run: Run, chosen: argparse.Namespace) -> None:
    state = run.setup(lambda: build(chosen))
    replica = run.ddp(state.model)
    commits = CommitLog(chosen.commits)
    try:
        for step in run.steps(Numbers(), global_batch=run.world_size, micro_batch=1, last_step=1 << 30):
            for numbers in step:
                step.backward(replica(numbers).square().mean())
            time.sleep(chosen.step_s)
            step.commit(state.optimizer.step)
            commits.write(step.number, run.rank, run.generation, run.world_size)
    finally:
        commits.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--commits", type=Path, required=True)
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--tensor-bytes", type=int, required=True)
    parser.add_argument("--step-s", type=float, required=True)
    train(parser.parse_args())
