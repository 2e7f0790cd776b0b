"""Callbacks hear of each event once, however often the training function is entered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback, ExportableState

if TYPE_CHECKING:
    from keepstep.torch.runtime.run import Run

# Their state is put back before an event comes again, or they have none.
_ALWAYS = (DefaultFlowCallback, ExportableState)
# What a process hears, though the one that had its rank before heard it.
_OF_PROCESS = "on_train_begin"
_SELDOM = ("on_log", "on_evaluate", "on_save", "on_epoch_end")
_LONG = ("should_log", "should_evaluate", "should_save")

Told = dict[str, dict[str, Any]]  # events of the newest steps, and what control was after each; for JSON


class OnceHandler(CallbackHandler):
    """A CallbackHandler; see `once`.

    Attributes:
        told: what its callbacks heard of the last steps, and what control was after each event; for JSON.
    """

    callbacks: list[Any]
    told: Told
    _nth: Counter[str]  # of this entry
    _mark: Callable[[], None] | None
    _run: Run

    def enter(self, told: Told, mark: Callable[[], None] | None, run: Run) -> None:
        """The training function is entered: events come again. `told`: by the process that had this rank before.
        `mark` is called when `told` has grown, and what follows may take long. Without it, a spare rehearses."""
        self._nth = Counter()
        self._mark = mark
        self._run = run
        self.told = told | self.told

    def call_event(self, event: str, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        self._run._check_interrupted()  # a collective before it may have been cut short: what it would tell is wrong
        if self._mark is None:
            return self._repeat(dict.fromkeys(_LONG, False), event, args, state, control, **kwargs)
        key = event if event == _OF_PROCESS else f"{event}/{state.global_step}"
        self._nth[key] += 1
        key = f"{key}/{self._nth[key]}"
        before = self.told.get(key)
        if before is not None:
            return self._repeat(before, event, args, state, control, **kwargs)
        control = super().call_event(event, args, state, control, **kwargs)
        self._run._check_results()  # if one was cut short in it, it is told again
        self.told[key] = dict(control.state()["args"])
        if event in _SELDOM or (event == "on_step_end" and any(getattr(control, name) for name in _LONG)):
            self._mark()
        return control

    def _repeat(self, before: dict[str, Any], event: str, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        everyone: list[Any] = self.callbacks
        self.callbacks = [each for each in everyone if isinstance(each, _ALWAYS)]
        try:
            control = super().call_event(event, args, state, control, **kwargs)
        finally:
            self.callbacks = everyone
        for name, value in before.items():
            setattr(control, name, value)
        return control

    def leave(self) -> None:
        """A plain CallbackHandler from here on."""
        self.__class__ = CallbackHandler

    def forget_before(self, step: int) -> None:
        """Nothing of an earlier step comes again."""
        self.told = {key: value for key, value in self.told.items() if _step_of(key) >= step}

    def told_of_steps(self) -> Told:
        """What another process need not hear again."""
        return {key: value for key, value in self.told.items() if not key.startswith(_OF_PROCESS)}


def _step_of(key: str) -> float:
    event, *numbers = key.split("/")
    return float("inf") if event == _OF_PROCESS else int(numbers[0])


def once(handler: CallbackHandler) -> OnceHandler:
    """`handler` itself: from here on an event that comes again, after a fault, reaches only callbacks whose state was
    put back; what the others decided then is repeated."""
    if not isinstance(handler, OnceHandler):
        handler.__class__ = OnceHandler
        handler.told = {}
    return handler
