"""The model, optimizer, schedule and text of the compared job, the same for every tool."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import default_collate

from keepstep.bench.harness.workload import CONTEXT, HEADS, LAYERS, WIDTH
from model import GPT, GPTConfig
from text import Text


class Trained(NamedTuple):
    model: GPT
    optimizer: AdamW
    schedule: LambdaLR


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    made.add_argument("--global-batch", type=int, required=True)
    made.add_argument("--seed", type=int, required=True)
    made.add_argument("--until", type=int, required=True)
    made.add_argument("--commits", type=Path, required=True)
    made.add_argument("--layers", type=int, default=LAYERS)
    made.add_argument("--width", type=int, default=WIDTH)
    return made


def build(seed: int, layers: int = LAYERS, width: int = WIDTH) -> Trained:
    torch.manual_seed(seed)
    model = GPT(GPTConfig(layers=layers, width=width, heads=HEADS, context=CONTEXT))
    optimizer = AdamW(model.parameters(), lr=3e-4)
    return Trained(model, optimizer, LambdaLR(optimizer, lambda done: min(1.0, (done + 1) / 20)))


def text() -> Text:
    return Text(CONTEXT)


def batch(samples: Text, step: int, global_batch: int, rank: int, ranks: int) -> tuple[Tensor, Tensor]:
    """The share of `rank` in step `step` (from 1): int64[global_batch / ranks, context], twice."""
    share = global_batch // ranks
    first = (step - 1) * global_batch + rank * share
    tokens, targets = default_collate([samples[i % len(samples)] for i in range(first, first + share)])
    return tokens, targets
