"""Passing over a recoverable function that is over in this job, in a process that came later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keepstep._errors import KeepstepError
from keepstep._options import RecoverOptions
from keepstep._session import PassedOver, Session
from keepstep._state import State
from keepstep.torch.runtime import returned
from keepstep.torch.runtime.run import Run


def pass_over(
    session: Session,
    function: Callable[..., Any],
    options: RecoverOptions,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """What `function` returned on rank 0. It is entered only if that holds a state, and left where it needs a rank."""
    name = getattr(function, "__name__", "the training function")
    states: dict[str, State] = {}

    def state(of: str) -> State:
        if not states:
            states.update(_set_up(session, function, options, args, kwargs))
            session.hollow = name
        if of not in states:
            raise KeepstepError(
                f"{name}() returned the state '{of}' on rank 0; here run.setup did not build it before run.ddp: does "
                "that depend on the rank, or on the environment?"
            )
        return states[of]

    value = returned.decode(returned.of_function_that_is_over(session), state)
    session.functions += 1
    return value


def _set_up(
    session: Session,
    function: Callable[..., Any],
    options: RecoverOptions,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> dict[str, State]:
    run = Run(session, options, function)
    session.passing = True
    try:
        function(run, *args, **kwargs)
    except PassedOver:
        pass
    finally:
        session.passing = False
    return run._states_without_rank()
