"""A running job, asked from outside through the command ``keepstep ask``, which handles access and tokens."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from types import TracebackType
from typing import IO, Any, TypeVar

from keepstep._command import keepstep_command
from keepstep._errors import KeepstepError

AnyOfThem = TypeVar("AnyOfThem", bound="Closes")


class Closes:
    """What is closed at the end of a ``with``."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self: AnyOfThem) -> AnyOfThem:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class NotThere(KeepstepError):
    """There is no such job, or it does not answer; it may only be starting or ending."""


class RunningJob(Closes):
    """Used in a ``with``. `job`: as for ``keepstep stacks``; `called`: what messages call it."""

    def __init__(self, job: str, key: Sequence[str] = (), called: str = "") -> None:
        self.called = called or (f"the job {job}" if job else "the job")
        self._command = [keepstep_command(), "ask", job, *key]
        self._process: subprocess.Popen[str] | None = None
        self._said: IO[bytes] | None = None

    def close(self) -> None:
        """It can be asked again afterwards."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()  # it holds nothing that could be lost
            process.communicate()
        if self._said is not None:
            self._said.close()

    def ask(self, op: str, limit_s: float, **fields: Any) -> dict[str, Any]:
        """Sends one request. NotThere; KeepstepError: it refuses, or options are wrong."""
        try:
            text = self._exchanged(json.dumps({"limit_s": limit_s, "request": {"op": op, **fields}}))
        except BaseException:
            self.close()  # the answer may still come, and is to no later question
            raise
        answer = json.loads(text)
        if not isinstance(answer, dict) or answer.get("ok") is not True:
            answer = answer if isinstance(answer, dict) else {}
            kind = NotThere if answer.get("absent") is True else KeepstepError
            raise kind(f"{self.called}: {answer.get('error') or 'the job sent an invalid answer'}")
        return answer

    def _exchanged(self, line: str) -> str:
        if self._process is None:
            self._said = tempfile.TemporaryFile()  # a pipe could fill up
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True
            )
        process = self._process
        assert process.stdin is not None and process.stdout is not None and self._said is not None
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
            text = process.stdout.readline()
        except BrokenPipeError:
            text = ""
        if not text:
            process.wait()
            self._said.seek(0)
            said = self._said.read().decode(errors="replace").strip().removeprefix("keepstep ask: ")
            raise KeepstepError(f"{self.called}: {said or 'the command keepstep ask ended without a word'}")
        return text
