"""The compared job under torchrun: DDP over gloo, a checkpoint through DCP every 10 steps, resumed after a restart."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

import gpt_setup
from commit_log import CommitLog
from model import next_byte_loss

EVERY_STEPS = 10


def state_of(trained: gpt_setup.Trained, step: int) -> dict[str, Any]:
    model, optimizer = get_state_dict(trained.model, trained.optimizer)
    return {"model": model, "optimizer": optimizer, "schedule": trained.schedule.state_dict(), "step": step}


def save(folder: Path, step: int, trained: gpt_setup.Trained) -> None:
    """A checkpoint is valid once `latest` names it; the previous one is kept until then."""
    dcp.save(state_of(trained, step), checkpoint_id=folder / f"step-{step}")
    if dist.get_rank() == 0:
        (folder / "latest.new").write_text(str(step))
        (folder / "latest.new").replace(folder / "latest")


def load(folder: Path, trained: gpt_setup.Trained) -> int:
    if not (folder / "latest").exists():
        return 0
    step = int((folder / "latest").read_text())
    state = state_of(trained, 0)
    dcp.load(state, checkpoint_id=folder / f"step-{step}")
    set_state_dict(
        trained.model, trained.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    trained.schedule.load_state_dict(state["schedule"])
    return step


def main() -> None:
    options = gpt_setup.parser()
    options.add_argument("--checkpoints", type=Path, required=True)
    chosen = options.parse_args()
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    # A restarted agent counts from 0, so the highest count identifies the generation.
    restarts = torch.tensor(int(os.environ["TORCHELASTIC_RESTART_COUNT"]))
    dist.all_reduce(restarts, dist.ReduceOp.MAX)
    generation = int(restarts) + 1
    trained = gpt_setup.build(chosen.seed, chosen.layers, chosen.width)
    done = load(chosen.checkpoints, trained)
    replica = DistributedDataParallel(trained.model)
    samples = gpt_setup.text()
    commits = CommitLog(chosen.commits)
    for step in range(done + 1, chosen.until + 1):
        tokens, targets = gpt_setup.batch(samples, step, chosen.global_batch, rank, ranks)
        trained.optimizer.zero_grad(set_to_none=True)
        next_byte_loss(replica(tokens), targets).backward()
        trained.optimizer.step()
        trained.schedule.step()
        commits.write(step, rank, generation, ranks)
        if step % EVERY_STEPS == 0:
            save(chosen.checkpoints, step, trained)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
