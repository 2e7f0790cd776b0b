"""Child processes that read words from standard input and answer with one JSON object per line.

They end with their input, so none outlives the benchmark, however that ends.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from keepstep.bench.harness.environment import BenchError

STOP_SECONDS = 15.0

Answer = dict[str, Any]


class LineProcess:
    """One child. Its standard error goes to `log`."""

    def __init__(self, name: str, command: Sequence[str], log: Path, environment: dict[str, str] | None = None) -> None:
        self.name = name
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input = self._process.stdin
        self._output = self._process.stdout
        self._pending = b""
        self._answers: list[Answer] = []

    def __enter__(self) -> LineProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def fileno(self) -> int:
        return self._output.fileno()

    def say(self, line: str) -> None:
        """Raises BenchError if the child is gone."""
        try:
            self._input.write(line.encode() + b"\n")
            self._input.flush()
        except BrokenPipeError:
            raise self._gone() from None

    def take(self, event: str) -> Answer | None:
        """The first unread answer with that "event", if it has arrived. Raises BenchError if the child failed."""
        for answer in self._answers:
            if answer["event"] == "failed":
                raise BenchError(f"{self.name}: {answer['because']}")
            if answer["event"] == event:
                self._answers.remove(answer)
                return answer
        return None

    def read(self) -> None:
        """Reads what is available. Raises BenchError at the end of the output."""
        data = os.read(self._output.fileno(), 1 << 16)
        if not data:
            raise self._gone()
        *lines, self._pending = (self._pending + data).split(b"\n")
        self._answers += [json.loads(line) for line in lines]

    def cpu_seconds(self) -> float:
        """CPU time of the child so far, user and system, to the kernel's clock tick (10 ms)."""
        stat = Path("/proc", str(self._process.pid), "stat").read_bytes()
        # The name, in parentheses, may contain anything; user and system time are the 14th and 15th field of the line.
        user, system = stat[stat.rindex(b")") + 2 :].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def end_input(self) -> None:
        if not self._input.closed:
            self._input.close()

    def stop(self) -> None:
        """Ends the child: gently, then by force."""
        try:
            self.end_input()
        except BrokenPipeError:
            pass
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()

    def _gone(self) -> BenchError:
        code = self._process.wait()
        words = "\n".join(self.log.read_text(errors="replace").splitlines()[-10:])
        return BenchError(f"{self.name} ended with exit code {code}; the end of {self.log}:\n{words}")


def answers(processes: Iterable[LineProcess], event: str, timeout_s: float) -> list[Answer]:
    """One answer with that "event" from each process, in order. Raises BenchError if one fails or is too slow."""
    waiting = list(processes)
    found: dict[str, Answer] = {}
    deadline = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        for process in waiting:
            selector.register(process, selectors.EVENT_READ, process)
        while True:
            for process in waiting:
                if process.name not in found and (answer := process.take(event)) is not None:
                    found[process.name] = answer
                    selector.unregister(process)
            late = [process.name for process in waiting if process.name not in found]
            if not late:
                return [found[process.name] for process in waiting]
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                raise BenchError(f"no '{event}' within {timeout_s:g} s from {', '.join(late)}")
            for key, _ in ready:
                key.data.read()
