"""The decorator ``keepstep.recoverable``; free of torch until the decorated function is called."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload

from keepstep._errors import KeepstepError
from keepstep._options import RecoverOptions
from keepstep._redundancy import DEFAULT, Copies, Parity

if TYPE_CHECKING:
    from keepstep.torch.runtime.run import Run

P = ParamSpec("P")
R = TypeVar("R")


@overload
def recoverable(function: Callable[Concatenate[Run, P], R], /) -> Callable[P, R]: ...


@overload
def recoverable(
    *,
    health_check: Callable[[], None] | None = None,
    interrupt_timeout_s: float | None = None,
    rehearse: bool | None = None,
    redundancy: Copies | Parity = DEFAULT,
) -> Callable[[Callable[Concatenate[Run, P], R]], Callable[P, R]]: ...


def recoverable(
    function: Callable[..., Any] | None = None,
    /,
    *,
    health_check: Callable[[], None] | None = None,
    interrupt_timeout_s: float | None = None,
    rehearse: bool | None = None,
    redundancy: Copies | Parity = DEFAULT,
) -> Any:
    """Makes a training function survive faults: ``train(run, ...)`` becomes ``train(...)``.

    After a fault anywhere in the job, every healthy process enters the function again, with the state that
    ``run.setup`` built as the last committed step left it. The process keeps its memory and its device context. Works
    only under ``keepstep run``.

    See `RecoverOptions` for the arguments. The decorated function returns what the last entry returned.
    ``sys.exit(0)`` in the function ends it like a return: the process ends once all ranks have finished.

    Raises:
        KeepstepError: an argument is invalid.
    """
    if interrupt_timeout_s is not None and not 0 < interrupt_timeout_s < math.inf:
        raise KeepstepError(
            f"recoverable(interrupt_timeout_s={interrupt_timeout_s}): a number of seconds above 0; leave it out for "
            "the launcher's --interrupt-timeout"
        )
    if not isinstance(redundancy, (Copies, Parity)):
        raise KeepstepError(
            f"recoverable(redundancy={redundancy!r}): keepstep.Copies(2), or keepstep.Parity(data=6, parity=2)"
        )
    options = RecoverOptions(health_check, interrupt_timeout_s, rehearse, redundancy)

    def decorate(target: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(target)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            from keepstep.torch.runtime.loop import run_recoverable

            return run_recoverable(target, options, args, kwargs)

        return wrapper

    return decorate if function is None else decorate(function)
