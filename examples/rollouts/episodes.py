"""Episodes on their way from rollout workers to the trainer: one file each, made once, whoever dies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch


def path(folder: Path, step: int, episode: int) -> Path:
    return folder / f"{step:06}-{episode:03}.pt"


@contextmanager
def claimed(file: Path) -> Iterator[bool]:
    """True for the one worker that is to make `file`. If it dies, the kernel gives the claim up, and another can."""
    with open(f"{file}.claim", "w") as claim:
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield not file.exists()


def write(file: Path, tokens: torch.Tensor) -> None:
    partial = file.with_suffix(f".{os.getpid()}")
    torch.save(tokens, partial)
    partial.rename(file)  # appears as a whole


def read(file: Path) -> torch.Tensor:
    return torch.load(file, weights_only=True)
