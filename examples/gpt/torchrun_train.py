"""The same training before keepstep: DDP over gloo, and a checkpoint every 10 steps.

    torchrun --standalone --nproc-per-node 4 --max-restarts 3 examples/gpt/torchrun_train.py --checkpoint run.pt

When a rank dies, torchrun ends the others, starts all of them again, and they go on from the last checkpoint.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import default_collate

import options
from model import next_byte_loss
from text import Text

CHECKPOINT_EVERY_STEPS = 10


def save(path: Path, step: int, trained: options.Trained) -> None:
    """Whole or not at all: a rank may die while it writes."""
    state = {name: part.state_dict() for name, part in trained._asdict().items()}
    unfinished = path.with_suffix(".unfinished")
    torch.save(state | {"step": step}, unfinished)
    unfinished.replace(path)


def load(path: Path, trained: options.Trained) -> int:
    """Returns the step that the checkpoint was made after."""
    state: dict[str, Any] = torch.load(path, weights_only=True)
    trained.model.load_state_dict(state["model"])
    trained.optimizer.load_state_dict(state["optimizer"])
    trained.schedule.load_state_dict(state["schedule"])
    return int(state["step"])


def train(chosen: argparse.Namespace) -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    trained = options.build(chosen)
    model, optimizer, schedule = trained
    done = 0
    if chosen.checkpoint is not None and chosen.checkpoint.exists():
        done = load(chosen.checkpoint, trained)
    replica = DistributedDataParallel(model)
    text = Text(chosen.context, chosen.text_mib << 20)
    share = chosen.global_batch // world_size
    for step in range(done + 1, chosen.until + 1):
        first = (step - 1) * chosen.global_batch + rank * share
        tokens, targets = default_collate([text[i % len(text)] for i in range(first, first + share)])
        optimizer.zero_grad(set_to_none=True)
        loss = next_byte_loss(replica(tokens), targets)
        loss.backward()
        optimizer.step()
        schedule.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
            if chosen.checkpoint is not None and step % CHECKPOINT_EVERY_STEPS == 0:
                save(chosen.checkpoint, step, trained)
    if chosen.out is not None and rank == 0:
        options.write_digests(chosen.out, model.state_dict())
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    train(options.parse("Train a byte-level GPT under torchrun."))
