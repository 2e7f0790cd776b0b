"""What the scripts of `keepstep bench libraries` share: options, data, and a model made from its configuration."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import Dataset

from commit_log import CommitLog

EVERY_STEPS = 10
TOKENS = 64
PER_RANK = 4


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--commits", type=Path, required=True, help="folder for a line per rank and step")
    parser.add_argument("--until", type=int, required=True, help="the last step")
    parser.add_argument("--launcher", choices=("torchrun", "keepstep"), required=True)
    parser.add_argument("--checkpoints", type=Path, help=f"save there every {EVERY_STEPS} steps, and resume from it")
    return parser.parse_args()


class Text(Dataset[dict[str, torch.Tensor]]):
    """Random tokens that follow from the sample's number."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 512, (TOKENS,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


def model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=TOKENS,
        )
    )  # fmt: skip


class Steps:
    """Writes down each step of this process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log: CommitLog | None = None

    def write(self, step: int, rank: int, ranks: int) -> None:
        if self._log is None:  # not before this process is the one that trains: spares are forked
            self._log = CommitLog(self._folder)
        self._log.write(step, rank, int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")), ranks)


def newest(folder: Path | None, whole: str) -> Path | None:
    """The newest checkpoint: ``checkpoint-STEP``, which has the file `whole` when it is complete."""
    if folder is None:
        return None
    found = {int(each.parent.name.rpartition("-")[2]): each.parent for each in folder.glob(f"checkpoint-*/{whole}")}
    return found[max(found)] if found else None


def leave(chosen: argparse.Namespace) -> None:
    """The script is over. Under torchrun a process may crash at its end if Gloo's threads still run."""
    if chosen.launcher == "torchrun" and dist.is_initialized():
        dist.destroy_process_group()
