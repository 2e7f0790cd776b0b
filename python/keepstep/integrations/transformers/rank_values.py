"""Small values that each rank's Trainer keeps for itself: metrics not logged yet, counters, GRPO's generated batches.

They are taken just before the vote on a step, and go with the capsule. What the end of the step changes of them (it
logs and clears metrics) is kept beside it.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from keepstep import KeepstepError
from keepstep.integrations.taken_state import TakenState
from keepstep.torch.state import extra_state

# Of the Trainer, and of TRL's (tested with 1.16).
_NAMES = ("current_flos", "_metrics", "_total_train_tokens", "_step", "_buffered_inputs", "_logs", "_pending_metrics",
          "_pending_extra_logs")  # fmt: skip
Encoded = dict[str, Any]  # for JSON, by attribute


class RankValues(TakenState):
    """Of one Trainer."""

    def __init__(self, trainer: Any) -> None:
        super().__init__()
        self._trainer = trainer
        self._names = [name for name in (*_NAMES, *trainer.rank_values) if hasattr(trainer, name)]
        self._first = self._now()

    def take(self) -> None:
        self.taken = self._now()

    def changes(self) -> Encoded:
        """What differs now from what was taken."""
        return {name: value for name, value in self._now().items() if value != self.taken.get(name)}

    def begin(self) -> None:
        """Puts back what training began with."""
        self._put_back(self._first)

    def resume(self, changes: Encoded) -> None:
        """Puts back what was taken, with these `changes`."""
        self._put_back(self.taken | changes)

    def _now(self) -> Encoded:
        return {name: extra_state.encoded(f"the Trainer's {name}", _plain(self._value(name))) for name in self._names}

    def _value(self, name: str) -> Any:
        trainer = self._trainer
        if name == "_buffered_inputs":  # of GRPO and RLOO: used up after so many micro-batches, and made anew
            args = trainer.args
            if trainer._step % (args.steps_per_generation * getattr(args, "num_iterations", 1)) == 0:
                return None
        return getattr(trainer, name)

    def _put_back(self, state: Encoded) -> None:
        for name in self._names:
            if name in state:
                setattr(self._trainer, name, _in_place(getattr(self._trainer, name), extra_state.decoded(state[name])))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | deque):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, torch.Tensor | str | int | float | bytes):
        return value
    raise KeepstepError(
        f"recoverable: a {type(value).__qualname__} is among what the Trainer keeps by rank; only numbers, text, "
        "tensors and containers of these can be"
    )


def _in_place(old: Any, new: Any) -> Any:
    """`new`, in containers of the kinds that `old` has: a defaultdict goes on having a default."""
    if isinstance(old, dict) and isinstance(new, dict):
        before = dict(old)
        old.clear()
        for key, value in new.items():
            if key in before:
                old[key] = _in_place(before[key], value)
            elif getattr(old, "default_factory", None) is not None:
                old[key] = _in_place(old[key], value)
            else:
                old[key] = value
        return old
    if isinstance(old, deque) and isinstance(new, list):
        old.clear()
        old.extend(new)
        return old
    return new
