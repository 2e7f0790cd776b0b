"""The worker processes of a build: gives them parts, reads their answers, and ends them."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from keepstep._errors import KeepstepError
from keepstep.data.builder.inputs import Piece
from keepstep.data.builder.part import Counts

TICK_S = 0.2
_READ = 1 << 16


class _Worker:
    def __init__(self, setup: dict[str, Any], environment: dict[str, str]) -> None:
        # In its own session: only the command gets Ctrl-C, and ends its workers itself.
        self.process = subprocess.Popen(
            [sys.executable, "-m", "keepstep.data.builder.worker", str(os.getpid())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True,
        )  # fmt: skip
        self.part: int | None = None
        self.read = 0
        self._rest = b""
        self._write(setup)

    def _write(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # `hear` notices that it has ended

    def give(self, part: int, pieces: list[Piece]) -> None:
        self.part, self.read = part, 0
        self._write({"number": part, "pieces": [asdict(piece) for piece in pieces]})

    def hear(self) -> list[dict[str, Any]] | None:
        """Its messages; None once it has ended."""
        assert self.process.stdout is not None
        data = os.read(self.process.stdout.fileno(), _READ)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines] if data else None

    def how_it_ended(self) -> str:
        code = self.process.wait()
        if code >= 0:
            return f"exited with code {code}"
        name = signal.Signals(-code).name
        return f"was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass  # unsent data is not needed


class Pool:
    """A context manager: all processes are gone when it exits."""

    def __init__(self, count: int, setup: dict[str, Any]) -> None:
        package = str(Path(__file__).resolve().parents[3])
        # Each worker handles one part; the tokenizers' own threads share the remaining CPUs.
        threads = max(1, len(os.sched_getaffinity(0)) // count)
        self._environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])]),
            "RAYON_NUM_THREADS": str(threads),
            "TOKENIZERS_PARALLELISM": "true" if threads > 1 else "false",
        }
        self._count, self._setup = count, setup
        self._workers: list[_Worker] = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.end()

    def run(
        self,
        parts: dict[int, list[Piece]],
        done: Callable[[int, Counts], None],
        progress: Callable[[int], None],
    ) -> None:
        """Builds all parts, by number. Calls `progress` with the bytes read in unfinished parts. KeepstepError: a
        worker reported an error, or ended."""
        waiting = sorted(parts)
        waiting.reverse()
        with selectors.DefaultSelector() as selector:
            for _ in range(min(self._count, len(parts))):
                worker = _Worker(self._setup, self._environment)
                self._workers.append(worker)
                number = waiting.pop()
                worker.give(number, parts[number])
                assert worker.process.stdout is not None
                selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
            while selector.get_map():
                for key, _ in selector.select(TICK_S):
                    self._hear(key.data, parts, waiting, done, selector)
                progress(sum(worker.read for worker in self._workers))

    def _hear(
        self, worker: _Worker, parts: dict[int, list[Piece]], waiting: list[int],
        done: Callable[[int, Counts], None], selector: selectors.BaseSelector,
    ) -> None:  # fmt: skip
        messages = worker.hear()
        if messages is None:
            assert worker.part is not None
            first = parts[worker.part][0].path
            raise KeepstepError(
                f"worker {worker.process.pid} {worker.how_it_ended()} while it built part {worker.part}, "
                f"from '{first}' on"
            )
        for message in messages:
            if "error" in message:
                raise KeepstepError(message["error"])
            if "read" in message:
                worker.read = message["read"]
                continue
            assert worker.part is not None
            finished, worker.part, worker.read = worker.part, None, 0
            done(finished, Counts(**message["done"]))
            if waiting:
                number = waiting.pop()
                worker.give(number, parts[number])
            else:
                assert worker.process.stdout is not None
                selector.unregister(worker.process.stdout)
