"""What a Trainer's process keeps besides model, optimizers and schedules: progress, logs, and what callbacks remember.

It may differ between ranks. It is taken just before the vote on a step, and goes with the capsule.
"""

from __future__ import annotations

import copy
from typing import Any

from lightning.pytorch.callbacks import Checkpoint

from keepstep import KeepstepError
from keepstep.integrations.lightning import results
from keepstep.integrations.lightning.events import has_state
from keepstep.integrations.lightning.loops import all_loops
from keepstep.integrations.taken_state import TakenState
from keepstep.torch.distributed import agreement
from keepstep.torch.state import extra_state

_CONNECTOR = ("_first_loop_iter", "_current_fx", "_progress_bar_metrics", "_logged_metrics", "_callback_metrics")
_FLAGS = ("_restarting", "_loaded_from_state_dict", "_resuming_from_checkpoint")


class RankState(TakenState):
    """Of one Trainer."""

    def __init__(self, trainer: Any) -> None:
        super().__init__()
        self._trainer = trainer
        self._flags: list[tuple[Any, ...]] = []

    def take(self, closure: Any, rank: int) -> None:
        """`closure`: that computed the step's last gradients. `rank`: of this process."""
        self.taken = self._now() | {"output": _loss_of(closure), "rank": rank}

    def first(self) -> dict[str, Any]:
        """The state that training begins with, perhaps a checkpoint's."""
        self._flags = [tuple(getattr(loop, name) for name in _FLAGS) for loop in all_loops(self._trainer)]
        return self._now()

    def enter_world(self, rank: int) -> None:
        """On all ranks of an elastic job, after `put_back`: a rank that is new has a copy of another one's state, and
        what that one logged and measured must not count twice. `rank`: of this process, now."""
        taken = self.taken.get("rank", rank)
        if agreement.numbers_of_ranks(taken).index([taken]) != rank:
            results.begin_anew(self._trainer.fit_loop.epoch_loop._results, self._trainer.lightning_module)

    def output(self) -> dict[str, Any]:
        return dict(self.taken["output"])

    def checkpoints(self) -> list[Any]:
        """What `ModelCheckpoint` and its like know at the end, for a process that takes no part in training."""
        found: list[Any] = extra_state.encoded("Checkpoint", [_attributes(each) for each in self._checkpoints()])
        return found

    def put_back_checkpoints(self, known: list[Any]) -> None:
        for callback, attributes in zip(self._checkpoints(), extra_state.decoded(known), strict=True):
            vars(callback).update(attributes)

    def _checkpoints(self) -> list[Any]:
        return [each for each in self._trainer.callbacks if isinstance(each, Checkpoint)]

    def _now(self) -> dict[str, Any]:
        trainer = self._trainer
        connector = trainer._logger_connector
        state = {
            "loops": trainer.fit_loop.state_dict(),
            "should_stop": trainer.should_stop,
            "accumulate_grad_batches": trainer.accumulate_grad_batches,
            "connector": {name: getattr(connector, name) for name in _CONNECTOR},
            "results": results.take_results(trainer.fit_loop.epoch_loop._results),
            "metrics": results.take_metrics(trainer.lightning_module),
            "callbacks": [
                {"state": each.state_dict(), "attributes": _attributes(each)} if has_state(each) else None
                for each in trainer.callbacks
            ],
        }
        plain: dict[str, Any] = extra_state.decoded(extra_state.encoded("Trainer.fit", state))
        return plain

    def put_back(self, state: dict[str, Any]) -> None:
        """The Trainer of this process is as it was when `state` was taken."""
        trainer = self._trainer
        fit_loop = trainer.fit_loop
        begun = "output" in state
        fit_loop.load_state_dict(state["loops"])
        for index, loop in enumerate(all_loops(trainer)):
            for name, value in zip(_FLAGS, (False, False, False) if begun else self._flags[index], strict=True):
                setattr(loop, name, value)
        trainer.should_stop = state["should_stop"]
        if trainer.strategy.global_batch is None:
            trainer.accumulate_grad_batches = state["accumulate_grad_batches"]
        trainer.sanity_checking = False
        trainer.training = True
        trainer.lightning_module._current_fx_name = None
        for name, value in state["connector"].items():
            setattr(trainer._logger_connector, name, dict(value) if isinstance(value, dict) else value)
        results.put_back_results(fit_loop.epoch_loop._results, state["results"], trainer)
        fit_loop.epoch_loop.val_loop._results.clear()
        results.put_back_metrics(trainer.lightning_module, state["metrics"])
        for callback, kept in zip(trainer.callbacks, state["callbacks"], strict=True):
            if kept is not None:
                if kept["state"]:
                    callback.load_state_dict(extra_state.decoded(extra_state.encoded("", kept["state"])))
                for name, value in kept["attributes"].items():
                    setattr(callback, name, copy.deepcopy(value))


def _attributes(callback: Any) -> dict[str, Any]:
    """Those that are plain data: many callbacks remember more than they save."""
    found = {}
    for name, value in vars(callback).items():
        try:
            extra_state.encoded(name, value)
        except KeepstepError:
            continue
        found[name] = value
    return found


def _loss_of(closure: Any) -> dict[str, Any]:
    """Of what automatic optimization returns for a batch; nothing in manual optimization."""
    result = getattr(closure, "_result", None)
    return {} if result is None or result.loss is None else {"loss": result.loss}
