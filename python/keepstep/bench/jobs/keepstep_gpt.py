"""The compared job under ``keepstep run``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import torch

import gpt_setup
import keepstep
from commit_log import CommitLog
from model import next_byte_loss

if TYPE_CHECKING:
    from keepstep import Run


def ballast(mebibytes: int) -> torch.nn.Module:
    """Protected bytes that no computation uses; only hydration moves them."""
    module = torch.nn.Module()
    generator = torch.Generator().manual_seed(1)
    content = torch.randint(0, 256, (mebibytes << 20,), dtype=torch.uint8, generator=generator)
    module.register_buffer("content", content)
    return module


def build(chosen: argparse.Namespace) -> keepstep.State:
    trained = gpt_setup.build(chosen.seed, chosen.layers, chosen.width)
    if chosen.compile:
        trained.model.compile()
    more = {"ballast": ballast(chosen.ballast_mib)} if chosen.ballast_mib else {}
    return keepstep.State(**trained._asdict(), **more).with_unprotected(text=gpt_setup.text())


def train(run: Run, chosen: argparse.Namespace) -> None:
    state = run.setup(lambda: build(chosen))
    replica = run.ddp(state.model)
    commits = CommitLog(chosen.commits)
    try:
        for step in run.steps(
            state.text,
            global_batch=chosen.global_batch,
            micro_batch=chosen.micro_batch or chosen.global_batch // run.world_size,
            last_step=chosen.until,
        ):
            for tokens, targets in step:
                step.backward(next_byte_loss(replica(tokens), targets))
            step.commit(state.optimizer.step, state.schedule.step)
            commits.write(step.number, run.rank, run.generation, run.world_size)
            step.log(loss=step.loss)
    finally:
        commits.close()


if __name__ == "__main__":
    options = gpt_setup.parser()
    options.add_argument("--ballast-mib", type=int, default=0)
    options.add_argument("--rehearse", choices=["yes", "no", "default"], default="default")
    options.add_argument("--micro-batch", type=int, help="default: a rank's whole share, which no elastic job can have")
    options.add_argument("--compile", action="store_true")
    given = options.parse_args()
    keepstep.recoverable(rehearse={"yes": True, "no": False}.get(given.rehearse))(train)(given)
