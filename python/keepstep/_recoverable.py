"""The decorator ``keepstep.recoverable``; free of torch until the decorated function is called."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload

from keepstep._errors import KeepstepError

if TYPE_CHECKING:
    from keepstep.torch.run import Run

P = ParamSpec("P")
R = TypeVar("R")


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
    """

    health_check: Callable[[], None] | None = None
    on_interrupt: Callable[[str], None] | None = None
    finalize: Callable[[], None] | None = None
    timeout: float | None = None
    rehearse: bool | None = None
    copies: int = 2


@overload
def recoverable(function: Callable[Concatenate[Run, P], R], /) -> Callable[P, R]: ...


@overload
def recoverable(
    *,
    health_check: Callable[[], None] | None = None,
    on_interrupt: Callable[[str], None] | None = None,
    finalize: Callable[[], None] | None = None,
    timeout: float | None = None,
    rehearse: bool | None = None,
    copies: int = 2,
) -> Callable[[Callable[Concatenate[Run, P], R]], Callable[P, R]]: ...


def recoverable(
    function: Callable[..., Any] | None = None,
    /,
    *,
    health_check: Callable[[], None] | None = None,
    on_interrupt: Callable[[str], None] | None = None,
    finalize: Callable[[], None] | None = None,
    timeout: float | None = None,
    rehearse: bool | None = None,
    copies: int = 2,
) -> Any:
    """Makes a training function survive faults: ``train(run, ...)`` becomes ``train(...)``.

    After a fault anywhere in the job the function is entered again in every healthy process, with what
    ``run.keep`` built and ``run.protect`` registered as it stands at the last committed step. The process, its memory
    and its device context stay. Works under ``keepstep run`` only.

    See `RecoverOptions` for the arguments. Returns what the function returns in its last entry.
    """
    if copies < 1:
        raise KeepstepError(f"recoverable(copies={copies}): at least 1, the one on the rank's own node")
    options = RecoverOptions(health_check, on_interrupt, finalize, timeout, rehearse, copies)

    def decorate(target: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(target)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            from keepstep.torch.loop import run_recoverable

            return run_recoverable(target, options, args, kwargs)

        return wrapper

    return decorate if function is None else decorate(function)
