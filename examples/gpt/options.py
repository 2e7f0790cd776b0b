"""The command line of the two training scripts, and what both build from it."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from model import GPT, GPTConfig

WARMUP_STEPS = 20


class Trained(NamedTuple):
    """What changes in training."""

    model: GPT
    optimizer: AdamW
    schedule: LambdaLR


def parse(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--until", type=int, default=200, metavar="STEP", help="the last step")
    parser.add_argument("--global-batch", type=int, default=16, help="samples of a step, over all ranks")
    parser.add_argument("--micro-batch", type=int, default=4, help="samples of one forward and backward pass")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--context", type=int, default=64, help="bytes of a sample")
    parser.add_argument("--dropout", type=float, default=0.0, help="share of the activations to drop")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0, help="of the first weights")
    parser.add_argument("--text-mib", type=int, default=4, help="how much text to train on, in MiB")
    parser.add_argument("--out", type=Path, metavar="FILE", help="rank 0 writes the final parameters' digests here")
    parser.add_argument("--reproducible", action="store_true", help="train.py: the same bits on any number of ranks")
    parser.add_argument("--ids", type=Path, metavar="DIR", help="each process writes the samples it used here")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="of torchrun_train.py: saved every 10 steps")
    return parser.parse_args()


def build(options: argparse.Namespace) -> Trained:
    """Model, optimizer and schedule; the same bits in every process."""
    torch.manual_seed(options.seed)
    config = GPTConfig(layers=options.layers, width=options.width, context=options.context, dropout=options.dropout)
    model = GPT(config)
    optimizer = AdamW(model.parameters(), lr=options.learning_rate, weight_decay=0.1)
    return Trained(model, optimizer, LambdaLR(optimizer, lambda done: min(1.0, (done + 1) / WARMUP_STEPS)))


def digests(state: Mapping[str, Tensor]) -> dict[str, str]:
    """SHA-256 of each tensor's bytes, by name."""
    return {
        name: hashlib.sha256(tensor.detach().contiguous().view(torch.uint8).cpu().numpy().tobytes()).hexdigest()
        for name, tensor in state.items()
    }


def write_digests(path: Path, state: Mapping[str, Tensor]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(digests(state), indent=1) + "\n")
