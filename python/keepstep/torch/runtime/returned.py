"""What a recoverable function returned, for processes that start after it ended: they skip it.

They get what rank 0 returned. Plain data is sent as JSON, a `State` by its name: a process that skips the function
builds the state as all others did, and gets its values from peers once the next function protects it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from keepstep._errors import KeepstepError
from keepstep._session import Session
from keepstep._state import State

MAX_BYTES = 64 << 10  # as JSON


def encode(value: Any, states: Mapping[str, State]) -> str:
    """JSON. `states`: what `run.setup` built without a rank, by name.

    Raises:
        KeepstepError: `value` holds something that another process cannot have.
    """
    text = json.dumps(_written(value, states))
    if len(text) > MAX_BYTES:
        raise KeepstepError(f"{len(text)} bytes of data, more than {MAX_BYTES}")
    return text


def _written(value: Any, states: Mapping[str, State]) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, State):
        for name, state in states.items():
            if state is value:
                return {"state": name}
        raise KeepstepError("a State that run.setup did not build, or built with a rank")
    if type(value) in (list, tuple):
        return {type(value).__name__: [_written(each, states) for each in value]}
    if type(value) is dict and all(type(key) is str for key in value):
        return {"dict": {key: _written(each, states) for key, each in value.items()}}
    raise KeepstepError(f"a {type(value).__module__}.{type(value).__qualname__}".replace("builtins.", ""))


def decode(text: str, state: Callable[[str], State]) -> Any:
    """What `encode` wrote. `state`: builds the one of that name."""
    return _read(json.loads(text), state)


def _read(written: Any, state: Callable[[str], State]) -> Any:
    if not isinstance(written, dict):
        return written
    ((kind, held),) = written.items()
    if kind == "state":
        return state(held)
    if kind == "dict":
        return {key: _read(each, state) for key, each in held.items()}
    items = [_read(each, state) for each in held]
    return tuple(items) if kind == "tuple" else items


class Returned:
    """The returned value of the function that this process is in, or was in last."""

    def __init__(self, session: Session, function: Callable[..., Any]) -> None:
        self._session = session
        self._name = getattr(function, "__name__", "the training function")
        self._error = ""  # why a later process cannot have it

    def tell(self, value: Any, states: Mapping[str, State]) -> None:
        """Publishes the value. Called on all ranks, before the function is over on any."""
        self._error = ""
        try:
            text = encode(value, states)
        except KeepstepError as error:
            self._error = str(error)
            return
        if self._session.rank_or_none == 0:
            self._session.store("set", self._session.key("returned"), text.encode(), ends_with_generation=False)

    def check(self) -> None:
        """Another function follows."""
        if self._error:
            raise KeepstepError(
                f"{self._name}() returned {self._error}. Another recoverable function follows, and a process that "
                f"joins then passes over {self._name}(): it gets what rank 0 returned. Return plain data (numbers, "
                "strings, lists, tuples, dicts) and states that run.setup built; keep other things in a file"
            )


def of_function_that_is_over(session: Session) -> str:
    """What the function that this process skips returned."""
    _, _, ok, value = session.store("get", session.key("returned"), ends_with_generation=False)
    if not ok:
        raise KeepstepError("the job has lost what a recoverable function returned that is over")
    return value.decode()
