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
    session: Session, function: Callable[..., Any], options: RecoverOptions, enter: Callable[[Run], Any]
) -> Any:
    """What `function` returned on rank 0. `enter` calls it: only if it returned a state, and up to where it needs a
    rank."""
    name = getattr(function, "__name__", "the training function")
    states: dict[str, State] = {}

    def state(of: str) -> State:
        if not states:
            states.update(_set_up(session, Run(session, options, function), enter))
            session.unfilled_from = name
        if of not in states:
            raise KeepstepError(
                f"{name}() returned the state '{of}' on rank 0; here run.setup did not build it before run.ddp: does "
                "that depend on the rank, or on the environment?"
            )
        return states[of]

    value = returned.decode(returned.of_function_that_is_over(session), state)
    session.functions += 1
    return value


def _set_up(session: Session, run: Run, enter: Callable[[Run], Any]) -> dict[str, State]:
    session.passing = True
    try:
        enter(run)
    except PassedOver:
        pass
    finally:
        session.passing = False
    return run._states.without_rank()
