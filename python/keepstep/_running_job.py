"""A running job, asked from outside through the command ``keepstep ask``, which handles access and tokens."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from keepstep._command import keepstep_command
from keepstep._errors import KeepstepError


class NotThere(KeepstepError):
    """There is no such job, or it does not answer; it may only be starting or ending."""


class RunningJob:
    """Used in a ``with``. `job`: as for ``keepstep stacks``; `called`: what messages call it."""

    def __init__(self, job: str, key: Sequence[str] = (), called: str = "") -> None:
        self.called = called or (f"the job {job}" if job else "the job")
        self._said = tempfile.TemporaryFile()  # a pipe could fill up
        self._process = subprocess.Popen(
            [keepstep_command(), "ask", job, *key], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said,
            text=True,
        )  # fmt: skip

    def __enter__(self) -> RunningJob:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._process.kill()  # it holds nothing that could be lost
        self._process.communicate()
        self._said.close()

    def ask(self, op: str, limit_s: float, **fields: Any) -> dict[str, Any]:
        """Sends one request. NotThere; KeepstepError: it refuses, or options are wrong."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            line = {"limit_s": limit_s, "request": {"op": op, **fields}}
            self._process.stdin.write(json.dumps(line) + "\n")
            self._process.stdin.flush()
            text = self._process.stdout.readline()
        except BrokenPipeError:
            text = ""
        if not text:
            self._process.wait()
            self._said.seek(0)
            said = self._said.read().decode(errors="replace").strip().removeprefix("keepstep ask: ")
            raise KeepstepError(f"{self.called}: {said or 'the command keepstep ask ended without a word'}")
        answer = json.loads(text)
        if not isinstance(answer, dict) or answer.get("ok") is not True:
            answer = answer if isinstance(answer, dict) else {}
            kind = NotThere if answer.get("absent") is True else KeepstepError
            raise kind(f"{self.called}: {answer.get('error') or 'the job sent an invalid answer'}")
        return answer
