"""The corpus of ``keepstep bench data``: the Python standard library's sources, repeated as needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from keepstep.bench.harness.environment import JOBS, BenchError, job_environment


@dataclass(frozen=True)
class Corpus:
    """Files written for a benchmark. `tokens` are uint16."""

    prefix: str
    tokens: int
    documents: int

    @property
    def bytes(self) -> int:
        return 2 * self.tokens

    def evict(self) -> None:
        """Drops the files from the page cache, so reads have to go to the disk."""
        for suffix in (".bin", ".idx"):
            file = os.open(self.prefix + suffix, os.O_RDONLY)
            try:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(file)


def write(prefix: Path, size: int) -> Corpus:
    """Writes at least `size` bytes of tokens."""
    written = json.loads(run_job("data_corpus_job", "--prefix", str(prefix), "--bytes", str(size))[-1])
    return Corpus(str(prefix), written["tokens"], written["documents"])


def run_job(name: str, *arguments: str, python: str = sys.executable, limit_s: float = 900.0) -> list[str]:
    """Runs ``jobs/NAME.py`` to its end; returns the lines it printed."""
    command = [python, str(JOBS / f"{name}.py"), *arguments]
    try:
        done = subprocess.run(command, env=job_environment(), capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise BenchError(f"{name} took longer than {limit_s:.0f} s: {' '.join(command)}") from None
    if done.returncode != 0:
        raise BenchError(f"{name} failed: {' '.join(command)}\n{done.stderr[-3000:]}")
    return done.stdout.splitlines()
