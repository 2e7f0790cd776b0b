"""Learning-rate schedules of a Trainer: they move in the commit, when Lightning would move them after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning.pytorch.trainer import call
from torch.optim.lr_scheduler import ReduceLROnPlateau

from keepstep.torch.prepared.committing import PreparedSchedule
from keepstep.torch.prepared.plateau import PreparedPlateau

if TYPE_CHECKING:
    from keepstep.torch.runtime.run import Run


class Schedules:
    """Of one training. Their `interval` and `frequency` say when they move, in manual optimization, too.

    Attributes:
        all: the schedules, to be protected.
        plateaus: those that follow a metric: Lightning, or the user, steps them after a validation.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._configs = list(trainer.strategy.lr_scheduler_configs)
        self.all = [each.scheduler for each in self._configs]
        self.plateaus = [PreparedPlateau(each) for each in self.all if isinstance(each, ReduceLROnPlateau)]

    def enter(self, run: Run) -> None:
        """An entry begins. In manual optimization the user's ``step()`` after the commit moves nothing."""
        plateaus = iter(self.plateaus)
        for config, schedule in zip(self._configs, self.all, strict=True):
            if isinstance(schedule, ReduceLROnPlateau):
                config.scheduler = next(plateaus).enter(run)
            elif not self._trainer.lightning_module.automatic_optimization:
                config.scheduler = PreparedSchedule(schedule)

    def leave(self) -> None:
        """Training is over on all ranks."""
        for each in self.plateaus:
            each.finish()
        for config, schedule in zip(self._configs, self.all, strict=True):
            config.scheduler = schedule

    def move(self) -> None:
        """Part of the commit."""
        trainer = self._trainer
        epoch_loop = trainer.fit_loop.epoch_loop
        at_end = epoch_loop._num_ready_batches_reached()
        for config, schedule in zip(self._configs, self.all, strict=True):
            if isinstance(schedule, ReduceLROnPlateau):
                continue
            if (config.interval == "step" or at_end) and epoch_loop._is_due(config):
                if isinstance(config.scheduler, PreparedSchedule):
                    config.scheduler.move()
                else:
                    call._call_lightning_module_hook(trainer, "lr_scheduler_step", schedule, None)
