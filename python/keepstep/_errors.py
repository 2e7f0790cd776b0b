"""The exceptions that keepstep raises."""

from __future__ import annotations


class KeepstepError(RuntimeError):
    """keepstep was used incorrectly; the message says what to do."""


class JobOver(KeepstepError):
    """The job that this process follows has ended (`keepstep.subscribe`)."""


class Interruption(BaseException):
    """The current generation ended: unwind to ``keepstep.recoverable``, which enters the function again.

    A ``BaseException``, so ``except Exception`` in user code does not catch it. Raised in ``run.steps``,
    ``step.commit`` and barriers, and at block boundaries of the model; never inside a future.
    """
