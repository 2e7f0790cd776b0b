"""Lightning's training loops, entered after the last committed step."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.loops.evaluation_loop import _EvaluationLoop
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.trainer import call
from lightning.pytorch.utilities.combined_loader import CombinedLoader

from keepstep import KeepstepError
from keepstep.integrations.lightning.loader import Fetcher

if TYPE_CHECKING:
    from keepstep.integrations.lightning.fit import Fit


class RecoverableFitLoop(_FitLoop):
    """Attributes:
    fit: the training that is under way.
    """

    fit: Fit
    _data_fetcher: Fetcher | None

    def setup_data(self) -> None:
        """The loader is the entry's. Epochs may differ by one batch."""
        loader = self.fit.loader
        if loader is None:  # asked for the number of steps, before training
            self._measure(self.fit.rounds_per_epoch())
            return
        if self._data_fetcher is None:
            self._data_fetcher = Fetcher(loader)
            self._combined_loader = CombinedLoader(loader, "max_size_cycle")
        self._measure(loader.batches_in(self._epoch))

    @property
    def _epoch(self) -> int:
        progress: Any = self.epoch_progress.current
        return int(progress.processed)

    def _measure(self, batches: int) -> None:
        """`batches`: of this rank in the epoch; before there is a rank, with a global batch: steps."""
        trainer: Any = self.trainer
        interval = trainer.val_check_interval
        self.max_batches = batches
        unit = self.fit.unit
        rounds = batches // unit
        if isinstance(interval, int):
            in_epochs = trainer.check_val_every_n_epoch is not None
            most = self.fit.rounds_per_epoch()
            if interval > most and in_epochs and trainer.limit_val_batches > 0:
                counted = "batches that a rank" if trainer.strategy.global_batch is None else "steps that a job"
                raise KeepstepError(
                    f"Trainer.fit: val_check_interval={interval} is more than the {most} {counted} has in an epoch. "
                    "Count over epochs with check_val_every_n_epoch=None, or choose fewer"
                )
            trainer.val_check_batch = unit * (min(interval, rounds) if in_epochs else interval)
        else:
            trainer.val_check_batch = unit * max(1, int(rounds * interval))

    def run(self) -> None:
        if not self.fit.replaying:
            super().run()
            return
        self.setup_data()
        torch.set_grad_enabled(True)
        self.advance()  # the rest of the epoch
        self.on_advance_end()
        self.on_iteration_done()
        while not self.done:
            try:
                self.on_advance_start()
                self.advance()
                self.on_advance_end()
            except StopIteration:
                break
            finally:
                self.on_iteration_done()
        self.on_run_end()

    def on_advance_end(self) -> None:
        super().on_advance_end()
        assert self._data_fetcher is not None
        self._data_fetcher.finish()


class RecoverableEpochLoop(_TrainingEpochLoop):
    def run(self, data_fetcher: Any) -> None:
        fit = self._fit
        if not fit.replaying:
            super().run(data_fetcher)
            return
        fit.replaying = False
        self.on_run_start(data_fetcher)
        batch = fit.last_batch()
        fit.seed_end()
        self._finish_batch(fit.last_output(), batch)
        self.on_advance_end(data_fetcher)
        self.on_iteration_done()
        while not self.done:
            try:
                self.advance(data_fetcher)
                self.on_advance_end(data_fetcher)
            except StopIteration:
                break
            finally:
                self.on_iteration_done()

    def reset(self) -> None:
        with warnings.catch_warnings():  # Lightning takes the loader for one that cannot begin in an epoch
            warnings.filterwarnings("ignore", "You're resuming from a checkpoint that ended before the epoch ended")
            super().reset()

    def on_save_checkpoint(self) -> dict[str, Any]:
        trainer: Any = self.trainer
        counted = {} if trainer.strategy.global_batch is None else {"accumulation": trainer.accumulate_grad_batches}
        return super().on_save_checkpoint() | counted

    def on_load_checkpoint(self, state_dict: dict[str, Any]) -> None:
        """With a global batch, as many steps are over as when it was saved, and not as many batches of a rank."""
        super().on_load_checkpoint(state_dict)
        trainer: Any = self.trainer
        if trainer.strategy.global_batch is None:
            return
        before, now = state_dict.get("accumulation"), trainer.accumulate_grad_batches
        ready = self.batch_progress.current.ready
        if before is None and ready:  # it was saved without a global batch
            if not self.batch_progress.is_last_batch:
                raise KeepstepError(
                    "Trainer.fit(ckpt_path=...): this checkpoint was saved in the middle of an epoch, and without a "
                    "global batch, so how many samples the epoch has used is unknown; begin with one that was saved "
                    "at the end of an epoch"
                )
            before, now = ready, now * trainer.fit_loop.fit.rounds_per_epoch()
        if before is None:  # it counts nothing
            return
        for progress in (self.batch_progress.current, self.batch_progress.total):
            more = progress.ready // before * now - progress.ready
            for name in ("ready", "started", "processed", "completed"):
                setattr(progress, name, getattr(progress, name) + more)

    @property
    def _fit(self) -> Fit:
        fit: Fit = self.trainer.fit_loop.fit
        return fit

    def on_run_start(self, data_fetcher: Any) -> None:
        data_fetcher.begin(self.trainer.fit_loop._epoch, self.batch_progress.current.ready)
        data_fetcher._start_profiler = self._on_before_fetch
        data_fetcher._stop_profiler = self._on_after_fetch

    def _finish_batch(self, batch_output: Any, batch: Any) -> None:
        """What `advance` does with a batch after its update."""
        trainer = self.trainer
        if trainer.lightning_module.automatic_optimization:
            self.automatic_optimization.optim_progress.optimizer.step.increment_completed()
        else:
            self.manual_optimization.optim_step_progress.increment_completed()
        results: Any = trainer._results
        results.batch, results.batch_size, results.dataloader_idx = batch, None, None
        self.batch_progress.increment_processed()
        self.update_lr_schedulers("step", update_plateau_schedulers=False)
        if self._num_ready_batches_reached():
            self.update_lr_schedulers("epoch", update_plateau_schedulers=False)
        call._call_callback_hooks(trainer, "on_train_batch_end", batch_output, batch, self.batch_idx)
        call._call_lightning_module_hook(trainer, "on_train_batch_end", batch_output, batch, self.batch_idx)
        trainer._logger_connector.on_batch_end()
        self.batch_progress.increment_completed()
        trainer._logger_connector.update_train_step_metrics()

    def on_advance_end(self, data_fetcher: Any) -> None:
        super().on_advance_end(data_fetcher)
        self._fit.events.mark()

    def _update_learning_rates(self, interval: str, update_plateau_schedulers: bool) -> None:
        """The commit moves the schedules; here only their progress is counted. Those that follow a metric get it."""
        if update_plateau_schedulers:
            super()._update_learning_rates(interval, update_plateau_schedulers)
            return
        if not self.trainer.lightning_module.automatic_optimization:
            return
        for config in self.trainer.lr_scheduler_configs:
            if config.interval == interval and not config.reduce_on_plateau and self._is_due(config):
                self.scheduler_progress.increment_ready()
                self.scheduler_progress.increment_completed()

    def _is_due(self, config: Any) -> bool:
        """Whether a schedule moves with the batch, or the epoch, that is under way, if it moves with these."""
        index = self.batch_idx // self._fit.unit if config.interval == "step" else self.trainer.current_epoch
        return bool((index + 1) % config.frequency == 0)

    def _broadcast_sigterm_tensor(self) -> None:
        """Notices come from the agent."""


class RecoverableValidationLoop(_EvaluationLoop):
    def setup_data(self) -> None:
        """A replaced process does it when no other does."""
        strategy: Any = self.trainer.strategy
        with strategy.alone():
            super().setup_data()


def all_loops(trainer: Any) -> list[Any]:
    """Those of ``fit``."""
    epoch = trainer.fit_loop.epoch_loop
    return [trainer.fit_loop, epoch, epoch.automatic_optimization, epoch.manual_optimization, epoch.val_loop]


def make_recoverable(trainer: Any, fit: Fit) -> None:
    """The loops of `trainer` themselves."""
    loop = trainer.fit_loop
    loop.__class__ = RecoverableFitLoop
    loop.epoch_loop.__class__ = RecoverableEpochLoop
    loop.epoch_loop.val_loop.__class__ = RecoverableValidationLoop
    loop.fit = fit
    loop._combined_loader = loop._data_fetcher = None


def leave(trainer: Any) -> None:
    """An entry is over: its loader is not used any more."""
    loop = trainer.fit_loop
    if loop._data_fetcher is not None:
        loop._data_fetcher.drop()
    loop._combined_loader = loop._data_fetcher = None
