"""What keepstep raises."""

from __future__ import annotations


class KeepstepError(RuntimeError):
    """A mistake in how keepstep is used, with what to do about it."""


class Interruption(BaseException):
    """The current generation ended: unwind to ``keepstep.recoverable``, which enters the function again.

    A ``BaseException``, so that ``except Exception`` in user code lets it pass. Raised in ``run.steps``,
    ``step.commit``, barriers and at block boundaries of the model; never from inside a future.
    """
