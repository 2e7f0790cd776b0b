"""Learning-rate schedules of a Trainer: they move in the commit, when Lightning would move them after it."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.trainer import call

from keepstep.torch.prepared.committing import PreparedSchedule


class Schedules:
    """Of one training. Their `interval` and `frequency` say when they move, in manual optimization, too.

    Attributes:
        all: the schedules, to be protected.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._configs = list(trainer.strategy.lr_scheduler_configs)
        self.all = [each.scheduler for each in self._configs]

    def enter(self) -> None:
        """An entry begins. In manual optimization the user's ``step()`` after the commit moves nothing."""
        if self._trainer.lightning_module.automatic_optimization:
            return
        for config, schedule in zip(self._configs, self.all, strict=True):
            config.scheduler = PreparedSchedule(schedule)

    def leave(self) -> None:
        for config, schedule in zip(self._configs, self.all, strict=True):
            config.scheduler = schedule

    def move(self) -> None:
        """Part of the commit."""
        trainer = self._trainer
        epoch_loop = trainer.fit_loop.epoch_loop
        at_end = epoch_loop._num_ready_batches_reached()
        for config, schedule in zip(self._configs, self.all, strict=True):
            if (config.interval == "step" or at_end) and epoch_loop._is_due(config):
                if isinstance(config.scheduler, PreparedSchedule):
                    config.scheduler.move()
                else:
                    call._call_lightning_module_hook(trainer, "lr_scheduler_step", schedule, None)
