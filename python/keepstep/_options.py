"""What ``keepstep.recoverable`` was given; free of torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class RecoverOptions:
    """What ``recoverable`` was given.

    Attributes:
        health_check: called without arguments before a worker takes a rank, the first time and again after a fault;
            raising makes the worker end (and be replaced).
        on_interrupt: called with the reason (one line) after the function was left because of a fault.
        finalize: called without arguments once all ranks returned from the function, on every rank.
        timeout: seconds a rank may take to leave an interrupted step before it is replaced; None: the launcher's
            ``--interrupt-timeout``. Enforced by the agent.
        rehearse: whether a spare goes through its first step up to ``run.commit`` before it waits, so that a recovery
            need not wait for what only the first step costs; ``run.rehearsing`` is True meanwhile. None: if the script
            called ``torch.compile`` before its first step; without, nothing was found to be saved.
        copies: nodes that hold a copy of each rank's state where it is sharded (FSDP2, tensor parallel, ZeRO-1), the
            rank's own node included; as many as there are nodes, if there are fewer.
        parity: (K, M): instead of copies on other nodes, groups of up to K ranks on different nodes have M parity
            blocks on M other nodes, so that any M nodes of theirs may be lost; (0, 0): copies.
    """

    health_check: Callable[[], None] | None = None
    on_interrupt: Callable[[str], None] | None = None
    finalize: Callable[[], None] | None = None
    timeout: float | None = None
    rehearse: bool | None = None
    copies: int = 2
    parity: tuple[int, int] = (0, 0)
