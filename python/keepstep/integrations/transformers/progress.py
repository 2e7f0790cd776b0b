"""What a Trainer keeps besides model, optimizer and schedule: counters, logs, and what its callbacks remember.

The Trainer's loop changes it on both sides of the commit: it adds up losses before, and counts, logs, evaluates and
saves after it. What follows a commit, up to the next step, is called its end here. A fault may interrupt it, and then
it is done again. So two states are kept: as the commit left it, and as its end left it.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from transformers.trainer_callback import ExportableState

if TYPE_CHECKING:
    from keepstep.integrations.transformers.trainer import RecoverableTrainer

_COUNTERS = ("_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step", "_initial_num_input_tokens_seen")
_NOT_SHARED = ("is_local_process_zero", "is_world_process_zero", "is_hyper_param_search", "log_history")
TrainerProgress = dict[str, Any]  # for JSON


class Progress:
    """Of one Trainer; protected, with the same values on all ranks.

    Attributes:
        committed: the state that the newest commit left.
        ended: the state that the end of that step left; None before that.
        grad_norm: as the loop computed it for the newest commit, for its log.
    """

    def __init__(self, trainer: RecoverableTrainer) -> None:
        self._trainer = trainer
        self.committed: TrainerProgress | None = None
        self.ended: TrainerProgress | None = None
        self.grad_norm: float | None = None

    def commit(self, begin: int) -> None:
        """A step is committed, which began with batch `begin`."""
        self.committed = {**self._take(), "begin": begin, "grad_norm": self.grad_norm}
        self.ended = None

    def end(self) -> None:
        """All that follows the newest commit is done in this process."""
        if self.committed is not None and self.ended is None:
            self.ended = self._take()

    def resume(self, ended: bool) -> TrainerProgress:
        """The Trainer is as the newest commit left it, or as the end of that step did; returns what it had kept."""
        if not ended:
            self.ended = None
        state = self.ended if ended else self.committed
        assert state is not None
        self._put_back(state)
        return state

    def _put_back(self, state: TrainerProgress) -> None:
        trainer = self._trainer
        for name, value in state["state"].items():
            setattr(trainer.state, name, value)
        trainer.state.log_history = state["history"][: state["logged"]]
        self.put_back_counters(state)
        trainer.lr_scheduler.__dict__["shown"] = state["rates"]
        self.grad_norm = state.get("grad_norm")
        exported = self._exported()
        for number, attributes in enumerate(state["callbacks"]):
            for name, value in attributes.items():
                setattr(exported[number], name, value)
        for name, value in state["control"].items():
            setattr(trainer.control, name, value)

    def put_back_counters(self, state: TrainerProgress) -> None:
        """Those that the Trainer's loop sets when it begins."""
        trainer = self._trainer
        for name in _COUNTERS:
            setattr(trainer, name, state["counters"][name])
        trainer._tr_loss = torch.tensor(state["tr_loss"], device=trainer.args.device)

    def _exported(self) -> list[Any]:
        return [each for each in self._trainer.callback_handler.callbacks if isinstance(each, ExportableState)]

    def _take(self) -> TrainerProgress:
        trainer = self._trainer
        state = trainer.state
        return {
            "state": {
                field.name: getattr(state, field.name)
                for field in dataclasses.fields(state)
                if field.name not in _NOT_SHARED
            },
            "history": state.log_history,  # grows at its end only
            "logged": len(state.log_history),
            "counters": {name: getattr(trainer, name) for name in _COUNTERS},
            "tr_loss": float(trainer._tr_loss),
            "rates": trainer.lr_scheduler.shown,
            "callbacks": [dict(each.state()["attributes"]) for each in self._exported()],
            "control": dict(trainer.control.state()["args"]),
        }

    # ---- protected ----

    def state_dict(self) -> TrainerProgress:
        return {name: _sent(getattr(self, name)) for name in ("committed", "ended")}

    def load_state_dict(self, state: TrainerProgress) -> None:
        self.committed = state["committed"]
        self.ended = state["ended"]


def _sent(state: TrainerProgress | None) -> TrainerProgress | None:
    return None if state is None else {**state, "history": state["history"][: state["logged"]]}
