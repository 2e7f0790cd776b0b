"""The life of a recoverable function: enter, be interrupted, join the next generation, enter again."""

from __future__ import annotations

import functools
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from keepstep import _engine
from keepstep._errors import Interruption, KeepstepError
from keepstep._options import RecoverOptions
from keepstep._session import Session, session
from keepstep.torch.current_run import after_commit, current_step
from keepstep.torch.data import user_loaders
from keepstep.torch.data_parallel import replicas
from keepstep.torch.distributed import nccl
from keepstep.torch.recovery import rehearsal
from keepstep.torch.runtime.passing import pass_over
from keepstep.torch.runtime.repeated_warnings import RepeatedWarnings
from keepstep.torch.runtime.returned import Returned
from keepstep.torch.runtime.run import Run
from keepstep.torch.tensors import cuda
from keepstep.worker import shortened, user_traceback


@dataclass(frozen=True)
class _Last:
    """The function that returned on all ranks last. What it had with its peers stays until another one begins."""

    run: Run
    returned: Returned


_last: _Last | None = None
_repeated = RepeatedWarnings()


def run_recoverable(
    function: Callable[..., Any], options: RecoverOptions, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Runs `function(run, ...)` until it returned on all ranks, however often it is entered."""
    global _last
    current = session(f"@keepstep.recoverable {getattr(function, '__name__', 'function')}()")
    if current.in_function:
        raise KeepstepError(
            "one recoverable function at a time: this one was called inside another; call it after that has returned"
        )
    current.in_function = True
    try:
        if current.functions < current.welcome.functions:
            return pass_over(current, function, options, lambda run: function(run, *args, **kwargs))
        _leave_last(current)
        run = Run(current, options, function)
        returned = Returned(current, function)
        result = _run_to_the_end(current, run, returned, functools.partial(function, run, *args, **kwargs), options)
        _last = _Last(run, returned)
        return result
    finally:
        current.in_function = False


def _leave_last(current: Session) -> None:
    """Another function begins. Afterwards nothing holds the one before, whose models may be large."""
    global _last
    if _last is not None:
        _last.returned.check()
        _last.run._entries.leave_for_good()
        _last = None
        current.start_again()


def _run_to_the_end(
    current: Session, run: Run, returned: Returned, enter: Callable[[], Any], options: RecoverOptions
) -> Any:
    current.recoverable = True
    _leave_notices_to_the_agent(current)
    current.users_health_check = options.health_check
    current.engine.tell_recoverable(options.interrupt_timeout_s or 0)
    replicas.track()
    user_loaders.track(current)
    _repeated.install()
    early = rehearsal.rehearse(run, enter, options) if rehearsal.wanted(current, options) else None
    reason: str | None = None  # why the previous entry was left
    exits: SystemExit | None = None
    while True:
        try:
            if reason is not None:
                _repeated.next_entry()
                run._entries.unwind(reason)
            result, exits = _left(current, enter) if early is None else (early.value, None)
            early = None
            run._entries.returned()
            returned.tell(result, run._states.without_rank())
            current.engine.finish()
            break
        except (Interruption, _engine.Interrupted) as interruption:
            reason = str(interruption)
            if isinstance(interruption, _engine.Interrupted) and current.formed and not current.engine.interrupted():
                reason = _take_exception(current, _left_over(interruption))
        except Exception as error:
            if current.assignment is None:
                raise  # before it had a rank this process is nobody's peer: it ends, and says why
            run._loops.raised()
            reason = _take_exception(current, error)
        # Here the exception is gone, and with it the frames that hold the old wrappers and graphs.
    run._hooks.call("finish")
    if exits is not None:
        raise exits
    return result


def _left(current: Session, enter: Callable[[], Any]) -> tuple[Any, SystemExit | None]:
    """What the function returned; or how it ended the script, without failing. Then it has ended like one that returns:
    who is alone in that is told of (docs/design/hangs.md), and the process ends once all ranks are through."""
    try:
        return enter(), None
    except SystemExit as exits:
        if current.assignment is None or exits.code not in (None, 0):
            raise
        return None, exits.with_traceback(None)  # its frames hold the loop open


def _leave_notices_to_the_agent(current: Session) -> None:
    """Slurm signals every process of a job; the agent says here what that means. A handler of the user's stays."""
    main = threading.current_thread() is threading.main_thread()
    if current.welcome.term_is_notice and main and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _left_over(interruption: _engine.Interrupted) -> KeepstepError:
    """This generation goes on, so the exception is of an earlier one: no other rank would leave the function for it."""
    error = KeepstepError(
        f"{interruption}: what was asked for belongs to a generation that is over. Futures and threads end with the "
        "entry of the function that made them: make new ones in each entry, and join threads or take results in a "
        "`finally`"
    )
    return error.with_traceback(interruption.__traceback__)


def _take_exception(current: Session, error: Exception) -> str:
    """Reports what user code raised and waits for the generation to end; an error after the seal is no error."""
    what = f"{type(error).__name__}: {error}"
    cuda.end_if_broken(error)
    if not nccl.wait_for_news(error, current.engine.interrupted):
        current.engine.fail(
            current_step(),
            what,
            shortened(user_traceback(error)),
            fatal=isinstance(error, KeepstepError),
            after_commit=after_commit(),
        )
    return what
