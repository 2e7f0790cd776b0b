"""One line per commit and process: ``step rank generation ranks seconds`` (CLOCK_MONOTONIC). One write per line."""

from __future__ import annotations

import os
import time
from pathlib import Path


class CommitLog:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(folder / f"{os.getpid()}.commits", flags, 0o644)

    def write(self, step: int, rank: int, generation: int, ranks: int) -> None:
        os.write(self._file, f"{step} {rank} {generation} {ranks} {time.monotonic():.6f}\n".encode())

    def close(self) -> None:
        os.close(self._file)
