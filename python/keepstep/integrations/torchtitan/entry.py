"""One entry of the training function, and what follows a commit in it.

torchtitan's loop logs, saves and validates after a commit. If a fault interrupts that on any rank, all ranks replay
the step: the loop runs through it again, without batches, forward, backward and update, and then does what follows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torchtitan.components.loss import IGNORE_INDEX

from keepstep.integrations.own_steps import OwnSteps
from keepstep.integrations.torchtitan import loop
from keepstep.integrations.torchtitan.rank_state import RankState, StepFigures
from keepstep.integrations.torchtitan.step_end import StepEnd
from keepstep.torch.sharded import fsdp

if TYPE_CHECKING:
    from keepstep._state import State
    from keepstep.torch.runtime.run import Run

_LOCAL = (torch.optim.Adam, torch.optim.AdamW)  # what their step does needs no other rank


class Entry:
    """The trainer is as the last committed step left it. Its steps commit, until `leave`.

    `state` is what `build` made.
    """

    def __init__(self, run: Run, state: State) -> None:
        trainer: Any = state.trainer
        run._form("torchtitan")
        self._trainer = trainer
        self._position: RankState = state.position
        if run.version == 0:
            self._position.taken = state.first
        self._figures = self._position.put_back()
        began = trainer.step - run.version  # at a checkpoint of torchtitan's
        self._steps = OwnSteps(run, trainer.config.training.steps - began)
        self._end = StepEnd(run)
        self._replaying = self._end.interrupted
        if self._replaying:
            trainer.step -= 1  # the loop counts it again
        optimizers = trainer.optimizers
        self._communicates = bool(optimizers._optimizer_step_pre_hooks) or any(
            type(each) not in _LOCAL for each in optimizers.optimizers
        )
        processor = trainer.metrics_processor
        self._instead = [
            (optimizers, "step", self._commit),
            (trainer.lr_schedulers, "step", lambda: None),  # part of the commit
            (trainer.lr_schedulers, "get_metrics", self._rates),
            (trainer.checkpointer, "load", lambda step=-1: False),  # `build` did
            (processor, "log", self._log),
            (processor, "log_validation", self._log_validation),
        ]
        if trainer.config.validator.enable:
            self._instead.append((trainer.validator, "validate", self._validate))
        for owner, name, function in self._instead:
            setattr(owner, name, function)
        loop.enter(self)

    def finish(self) -> None:
        """The loop is over."""
        self._end.over()
        self._steps.close()

    def leave(self) -> None:
        """The entry is over, or interrupted: the trainer is torchtitan's again."""
        loop.enter(None)
        for owner, name, _ in self._instead:
            delattr(owner, name)

    # ---- called by the loop ----

    def begin_step(self) -> bool:
        """Whether there is another step."""
        if self._replaying:
            return True
        self._end.over()
        self._figures = StepFigures()
        return self._steps.open()

    def batches(self, source: Iterator[Any]) -> Iterator[Any]:
        """The step's; in a replay stand-ins that count as many tokens."""
        if self._replaying:
            for count in self._figures.tokens:
                yield {}, torch.zeros(count, dtype=torch.int64)
            return
        while True:
            with self._steps.step.data_waits:
                batch = next(source)
            self._figures.tokens.append(int((batch[1] != IGNORE_INDEX).sum()))
            yield batch

    def loss(self, compute: Callable[..., torch.Tensor], batch: dict[str, Any]) -> torch.Tensor:
        """Of one forward and backward."""
        if self._replaying:
            return self._figures.losses.pop(0)
        self._steps.batch()
        found = compute(**batch)
        self._figures.losses.append(found.detach().clone())
        return found

    def norm(self, compute: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Of the gradients, which `compute` clips."""
        figures = self._figures
        if not self._replaying:
            found = compute()
            self._steps.check()
            figures.norm = found.detach().clone()
        assert figures.norm is not None
        return figures.norm

    def _rates(self) -> dict[str, float]:
        if not self._replaying:
            schedules = self._trainer.lr_schedulers
            self._figures.rates = type(schedules).get_metrics(schedules)
        return self._figures.rates

    def logged_step(self) -> None:
        """The step is logged. What follows needs no figures of it."""
        self._replaying = False

    def _commit(self, closure: Any = None) -> None:
        if not self._replaying:
            self._position.take(self._figures)
            self._steps.commit(self._update, self._communicates, self._loss())

    def _update(self) -> None:
        """What ``optimizers.step()`` and ``lr_schedulers.step()`` do. The first is asked without what torch puts around
        an optimizer's step: it contains the optimizers that are protected, and is none."""
        optimizers = self._trainer.optimizers
        for hook in list(optimizers._optimizer_step_pre_hooks.values()):
            hook(optimizers, (), {})
        inspect.unwrap(type(optimizers).step)(optimizers)
        for hook in list(optimizers._optimizer_step_post_hooks.values()):
            hook(optimizers, (), {})
        schedules = self._trainer.lr_schedulers
        type(schedules).step(schedules)

    def _loss(self) -> tuple[float, int]:
        """This rank's part of the mean over all ranks. Each loss is a part of a sum over ranks with other tokens."""
        trainer = self._trainer
        if trainer.parallel_dims.pp_enabled and not trainer.pp_has_last_stage:
            return 0.0, 0
        parts = trainer.parallel_dims.get_optional_mesh("loss")
        return sum(float(each) for each in self._figures.losses) * (1 if parts is None else parts.size()), 1

    def _log(
        self, step: int, global_avg_loss: float, global_max_loss: float, grad_norm: float, extra_metrics: Any = None
    ) -> None:
        processor = self._trainer.metrics_processor
        if not processor.data_loading_times:
            processor.data_loading_times.append(0.0)  # a replay loads nothing, and the log divides by their number
        arguments = (step, global_avg_loss, global_max_loss, grad_norm, extra_metrics)
        self._once("logged", step, lambda: type(processor).log(processor, *arguments))
        figures = {"global_avg_loss": global_avg_loss, "global_max_loss": global_max_loss, "grad_norm": grad_norm}
        self._steps.log(figures | (extra_metrics or {}))

    def _log_validation(self, loss: float, step: int, extra_metrics: Any = None) -> None:
        processor = self._trainer.metrics_processor
        self._once("validated", step, lambda: type(processor).log_validation(processor, loss, step, extra_metrics))
        self._steps.log({"validation_loss": loss})

    def _validate(self, model_parts: list[torch.nn.Module], step: int) -> None:
        validator = self._trainer.validator
        type(validator).validate(validator, model_parts, step)
        fsdp.reshard(model_parts)

    def _once(self, what: str, step: int, tell: Callable[[], None]) -> None:
        self._steps.check()
        if not self._end.told(what, step):
            tell()
            self._end.tell(what, step)
