"""Callbacks hear of each event once in a process, however often the training function is entered."""

from __future__ import annotations

from collections import Counter
from typing import Any

from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback, ExportableState

# Their state is put back before an event comes again, or they have none.
_ALWAYS = (DefaultFlowCallback, ExportableState)


class OnceHandler(CallbackHandler):
    """A CallbackHandler; see `once`."""

    _told: dict[tuple[Any, ...], dict[str, Any]]  # events, and what control was after each
    _nth: Counter[tuple[Any, ...]]  # of this entry

    def enter(self) -> None:
        """The training function is entered: events come again that this process has heard of."""
        self._nth = Counter()

    def call_event(self, event: str, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        key = (event, state.global_step) if event != "on_train_begin" else (event,)
        self._nth[key] += 1
        key = (*key, self._nth[key])
        before = self._told.get(key)
        if before is None:
            control = super().call_event(event, args, state, control, **kwargs)
            self._told = {
                k: v for k, v in self._told.items() if k[0] == "on_train_begin" or k[1] >= state.global_step - 1
            }
            self._told[key] = dict(control.state()["args"])
            return control
        everyone = self.callbacks
        self.callbacks = [each for each in everyone if isinstance(each, _ALWAYS)]
        try:
            control = super().call_event(event, args, state, control, **kwargs)
        finally:
            self.callbacks = everyone
        for name, value in before.items():
            setattr(control, name, value)
        return control


def once(handler: CallbackHandler) -> OnceHandler:
    """`handler` itself: from here on an event that comes again, after a fault, reaches only callbacks whose state was
    put back; what the others decided then is repeated."""
    if not isinstance(handler, OnceHandler):
        handler.__class__ = OnceHandler
        handler._told = {}
        handler._nth = Counter()
    return handler
