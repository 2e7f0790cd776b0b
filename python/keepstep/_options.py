"""The arguments of ``keepstep.recoverable``; free of torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from keepstep._redundancy import DEFAULT, Copies, Parity


@dataclass(frozen=True)
class RecoverOptions:
    """The arguments of ``recoverable``.

    Attributes:
        health_check: called without arguments before a worker takes a rank, initially and after each fault. If it
            raises, the worker ends and is replaced.
        interrupt_timeout_s: how long a rank may take to leave an interrupted step before its agent replaces it; None:
            the launcher's ``--interrupt-timeout``.
        rehearse: whether a spare runs its first step up to ``step.commit`` before it waits for a rank, which spares a
            recovery the cost of a process's first step; ``run.rehearsing`` is True meanwhile. None: only if the script
            called ``torch.compile`` before its first step; plain models gain nothing.
        redundancy: how sharded state (FSDP2, tensor parallel, ZeRO-1) survives the loss of nodes.
    """

    health_check: Callable[[], None] | None = None
    interrupt_timeout_s: float | None = None
    rehearse: bool | None = None
    redundancy: Copies | Parity = DEFAULT
