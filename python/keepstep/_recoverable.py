"""The decorator ``keepstep.recoverable``; free of torch until the decorated function is called."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload

from keepstep import _engine
from keepstep._errors import KeepstepError
from keepstep._options import RecoverOptions

if TYPE_CHECKING:
    from keepstep.torch.runtime.run import Run

P = ParamSpec("P")
R = TypeVar("R")


def _protection(copies: int | None, parity: str | None) -> tuple[int, tuple[int, int]]:
    if parity is None:
        if copies is not None and copies < 1:
            raise KeepstepError(f"recoverable(copies={copies}): at least 1, the one on the rank's own node")
        return 2 if copies is None else copies, (0, 0)
    wish = f"recoverable(parity={parity!r})"
    if copies is not None:
        raise KeepstepError(
            f"{wish} with copies={copies}: sharded state is protected by one or the other; parity=K+M outlives as many "
            "lost nodes as copies=M+1, with less memory"
        )
    numbers = re.fullmatch(r"([0-9]{1,3})\+([0-9]{1,3})", parity) if isinstance(parity, str) else None
    data, blocks = (int(number) for number in numbers.groups()) if numbers else (0, 0)
    most = _engine.MAX_BLOCKS_OF_GROUP
    if not (data and blocks and data + blocks <= most):
        raise KeepstepError(
            f'{wish}: write "K+M": groups of up to K ranks with M parity blocks, each at least 1 and {most} '
            'together; "6+2" outlives any two of eight nodes'
        )
    return 1, (data, blocks)


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
    copies: int | None = None,
    parity: str | None = None,
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
    copies: int | None = None,
    parity: str | None = None,
) -> Any:
    """Makes a training function survive faults: ``train(run, ...)`` becomes ``train(...)``.

    After a fault anywhere in the job the function is entered again in every healthy process, with what
    ``run.keep`` built and ``run.protect`` registered as it stands at the last committed step. The process, its memory
    and its device context stay. Works under ``keepstep run`` only.

    See `RecoverOptions` for the arguments; `copies` is 2 unless it or ``parity="K+M"`` is given, as in ``"6+2"``.
    Returns what the function returns in its last entry. ``sys.exit(0)`` in the function ends it like a return: the
    process ends with it once all ranks are through.
    """
    if timeout is not None and not 0 < timeout < math.inf:
        raise KeepstepError(
            f"recoverable(timeout={timeout}): a number of seconds above 0; leave it out for the launcher's "
            "--interrupt-timeout"
        )
    options = RecoverOptions(health_check, on_interrupt, finalize, timeout, rehearse, *_protection(copies, parity))

    def decorate(target: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(target)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            from keepstep.torch.runtime.loop import run_recoverable

            return run_recoverable(target, options, args, kwargs)

        return wrapper

    return decorate if function is None else decorate(function)
