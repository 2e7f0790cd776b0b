"""One entry of the training function, and what follows a commit in it.

What the Trainer's loop does after a commit, up to the next step, is called the step's end: it counts, logs, evaluates
and saves. If a fault interrupts it on any rank, all ranks replay it: the loop runs through the step again, without its
batches, gradients and update.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader

from keepstep._state import State
from keepstep.integrations.accelerate import process_state
from keepstep.integrations.transformers.callbacks import once
from keepstep.integrations.transformers.loader import TrainerLoader, TrainerOptimizer, TrainerStep
from keepstep.integrations.transformers.progress import Progress, TrainerProgress
from keepstep.integrations.transformers.rank_values import RankValues
from keepstep.torch.distributed import agreement
from keepstep.torch.prepared.batch_source import source_of
from keepstep.torch.prepared.committing import PreparedSchedule, Updates
from keepstep.torch.prepared.fixed_batch import require_fitting_world
from keepstep.torch.prepared.plateau import PreparedPlateau

if TYPE_CHECKING:
    from keepstep.torch.runtime.run import Run


class Entry:
    """The Trainer is as the last committed step left it, with this generation's replica and loader.

    `trainer` is a `RecoverableTrainer`.

    Attributes:
        progress: of the Trainer; protected.
        resumed: the state of it that this entry began with; None if no step is committed.
        replaying: the loop is in the last committed step, whose update is done.
    """

    def __init__(self, trainer: Any, run: Run, state: State, plain: DataLoader[Any], per_step: int | None) -> None:
        """`per_step`: batches of a step over all ranks; None: as many as the Trainer's arguments say."""
        self._trainer: Any = trainer
        self._run = run
        self._state = state
        handler = trainer.accelerator.ddp_handler
        trainer.model_wrapped = run.ddp(trainer.model, **({} if handler is None else handler.to_kwargs()))
        process_state.enter(run)
        require_fitting_world(run, per_step, "recoverable(trainer)", None)
        self.loader = TrainerLoader(run, source_of(plain, run._session), self, plain.dataset, per_step)
        if self.loader.accumulation is not None:
            trainer.args.gradient_accumulation_steps = self.loader.accumulation
        if isinstance(state.schedule, ReduceLROnPlateau):
            trainer.lr_scheduler = PreparedPlateau(state.schedule).enter(run)
        else:
            trainer.lr_scheduler = PreparedSchedule(state.schedule)
        updates = Updates(self.loader, [state.optimizer], [trainer.lr_scheduler], [], None, waits_for_scaler=False)
        trainer.optimizer = TrainerOptimizer(state.optimizer, updates, self)
        self.progress: Progress = state.progress
        self._rank_values: RankValues = state.rank_values
        self.resumed: TrainerProgress | None = None
        self.replaying = False
        mark = self._marked()
        self._callbacks = once(trainer.callback_handler)
        self._callbacks.enter(mark["told"], None if run.rehearsing else lambda: self._mark(ended=False), run)
        if run.version:
            ended = mark["ended"] and mark["version"] == run.version
            self.replaying = agreement.sum_of_ranks(int(ended)) < run.world_size
            self.resumed = self.progress.resume(ended=not self.replaying)
            self._rank_values.resume({} if self.replaying else mark["changes"])
            if self.replaying:
                run._evaluations.step = run.version
        else:
            self._rank_values.begin()

    @property
    def step(self) -> TrainerStep:
        """The step that is under way."""
        step = self.loader._step
        assert isinstance(step, TrainerStep)
        return step

    def leave(self) -> None:
        """Training is over: the Trainer has its own optimizer, schedule and callbacks."""
        self._callbacks.leave()
        self._trainer.optimizer = self._state.optimizer
        self._trainer.lr_scheduler = self._state.schedule

    def check(self) -> None:
        """Raises if the generation ended: collectives were cut short, and what they returned must not be used."""
        self._run._check_interrupted()

    def place(self) -> tuple[int, int]:
        """The epoch that the loop has to begin with, and how many of its batches it has to skip."""
        position = self._run._committed.position
        return self.loader._place(self.resumed["begin"] if self.replaying and self.resumed else position)

    def log(self, values: dict[str, Any]) -> None:
        """Publishes what the Trainer logs, as far as it is numbers, with the newest step."""
        self.check()
        self.loader._log_numbers(values)

    # ---- called by the loop's loader and optimizer ----

    def step_begins(self) -> None:
        """The end of the step before is over in this process."""
        self._run._evaluations.step = 0
        if self._run.version and not self._run.rehearsing:
            self.progress.end()
            self._callbacks.forget_before(self._trainer.state.global_step - 1)
            self._mark(ended=True)

    def voting(self) -> None:
        """This rank is about to vote on a step."""
        self._rank_values.take()

    def committing(self, loss: float, begin: int) -> None:
        """Runs in the commit of a step, whose mean loss is `loss`, and which began with batch `begin`."""
        trainer = self._trainer
        if trainer.args.logging_nan_inf_filter and not math.isfinite(loss):
            trainer._tr_loss += trainer._tr_loss / (1 + trainer.state.global_step - trainer._globalstep_last_logged)
        else:
            trainer._tr_loss += loss
        self.progress.commit(begin)

    # ---- how far this rank came, whichever process held it ----

    def _key(self) -> str:
        return self._run._session.key(f"trainer/{self._run.rank}")

    def _mark(self, ended: bool) -> None:
        mark = {
            "version": self._run.version,
            "ended": ended,
            "told": self._callbacks.told_of_steps(),
            "changes": self._rank_values.changes() if ended else {},
        }
        self._run._session.store("set", self._key(), json.dumps(mark).encode(), ends_with_generation=False)

    def _marked(self) -> dict[str, Any]:
        """What `_mark` kept of this rank; nothing of steps that are not committed: all ranks began again."""
        kept = self._run._session.kept(self._key())
        self._run._check_interrupted()
        mark: dict[str, Any] = json.loads(kept or b"{}")
        nothing = {"version": 0, "ended": False, "told": {}}
        return mark if mark and 0 < mark["version"] <= self._run.version else nothing
