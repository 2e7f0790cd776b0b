"""One ``Trainer.fit`` in this process, with an entry for each generation.

What Lightning's loops do behind a commit, up to the next batch, is called the step's end here: hooks, logs,
validation, checkpoints, the end of an epoch. It follows from the state that the commit left. So each entry puts that
state back on all ranks, and runs the end again; what was told and logged by then is not told again (events.py).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    BatchSizeFinder,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    ProgressBar,
    StochasticWeightAveraging,
    WeightAveraging,
)
from lightning.pytorch.core.optimizer import _MockOptimizer
from lightning.pytorch.trainer import call
from lightning.pytorch.trainer.connectors.data_connector import _request_dataloader
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import keepstep
from keepstep import KeepstepError, _engine
from keepstep.integrations.lightning import loggers, loops
from keepstep.integrations.lightning.events import Events
from keepstep.integrations.lightning.loader import FitLoader, limited
from keepstep.integrations.lightning.rank_state import RankState
from keepstep.integrations.lightning.schedules import Schedules
from keepstep.lightning import Rounds
from keepstep.torch import seeds
from keepstep.torch.data.cached import CachedLoader
from keepstep.torch.prepared.batch_source import source_of
from keepstep.torch.prepared.committing import PreparedOptimizer, Updates
from keepstep.torch.prepared.fixed_batch import batches_of, require_fitting_world
from keepstep.torch.prepared.prepared_loader import SummedLossStep

if TYPE_CHECKING:
    from keepstep.torch.runtime.run import Run

_END = 0x656E64  # of random numbers: not those of a batch


class Fit:
    """Made when ``fit`` is called, before this process has a rank.

    Attributes:
        trainer: Lightning's.
        loader: of the entry that is under way; None outside of one.
        events: what callbacks and loggers hear.
        loggers_key: in the Store, of the folders that loggers chose.
        replaying: the entry that is under way begins with the end of the last committed step.
        closure: that the newest optimizer's step computes its gradients with.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.loader: FitLoader | None = None
        self.loggers_key = loggers.key_of_training()
        self.events = Events(trainer.strategy.session)
        self.replaying = False
        self.closure: Any = None
        self._run: Run | None = None
        self._rank: int | None = None  # in the newest entry
        self._plain: Any = None
        self._last: tuple[int, Any] = (0, None)  # a version, and this rank's last batch of its step
        loops.make_recoverable(trainer, self)
        if trainer.strategy.global_batch is not None:
            counted = trainer.fit_loop.epoch_loop.on_save_checkpoint()  # of a fit before
            trainer.accumulate_grad_batches = 1  # while there is no rank, lengths are in steps
            trainer.fit_loop.epoch_loop.on_load_checkpoint(counted)

    # ---- lengths ----

    @property
    def plain(self) -> Any:
        """The loader that the user wrote."""
        if self._plain is None:
            found = _request_dataloader(self.trainer.fit_loop._data_source)
            if isinstance(found, Rounds):
                found = found.loader  # whose batches are handed out here
            if not isinstance(found, DataLoader | CachedLoader):
                raise KeepstepError(
                    f"Trainer.fit: the training data is a {type(found).__name__}; this version recovers one "
                    "DataLoader, or keepstep.data.cached(loader)"
                )
            try:
                len(found.loader if isinstance(found, CachedLoader) else found)  # type: ignore[arg-type]
            except TypeError:
                raise KeepstepError(
                    "Trainer.fit: the training data has no length, so no epoch would end; use a map-style data set, or "
                    "cached(loader) with a loader that has a __len__"
                ) from None
            self._plain = found
        return self._plain

    @property
    def _per_step(self) -> int | None:
        """Batches of a step over all ranks, if that is given."""
        global_batch = self.trainer.strategy.global_batch
        return None if global_batch is None else batches_of(global_batch, self.plain, "KeepstepStrategy")

    @property
    def unit(self) -> int:
        """How many batches of a rank count as one in the Trainer's other numbers: with a global batch a step's."""
        return 1 if self.trainer.strategy.global_batch is None else self.trainer.accumulate_grad_batches

    def rounds_per_epoch(self) -> int:
        """An epoch's batches of one rank, or with a global batch its steps, by the Trainer's limit."""
        plain: Any = self.plain.loader if isinstance(self.plain, CachedLoader) else self.plain
        return self._limit(math.ceil(len(plain) / (self._per_step or self.trainer.world_size)))

    def _limit(self, rounds: int) -> int:
        limit = self.trainer.limit_train_batches
        count = min(rounds, limit) if isinstance(limit, int) else int(rounds * limit)
        if count == 0 < rounds:
            unit = "batches of a rank" if self._per_step is None else "steps of an epoch"
            raise KeepstepError(f"Trainer.fit: limit_train_batches={limit} leaves none of the {rounds} {unit}")
        return count

    # ---- the whole of it ----

    def begin(self) -> None:
        """The Trainer is set up, but for what its strategy builds in the first entry."""
        self._forward = vars(self.trainer.lightning_module).get("forward")
        if not self.trainer.strategy.builds_in_entry:
            self.built()

    def built(self) -> None:
        """All is set up: this is what is trained."""
        strategy = self.trainer.strategy
        _require_recoverable(self.trainer)
        self._optimizers = list(strategy.optimizers)
        self._schedules = Schedules(self.trainer)
        self._rank_state = RankState(self.trainer)
        self._first = self._rank_state.first()

    def finish(self, known: list[Any]) -> None:
        """Training is over: the Trainer has its own schedules again. `known`: what `checkpoints` was on rank 0."""
        self._schedules.leave()
        if self.trainer.strategy.lacks_training:
            self._rank_state.put_back_checkpoints(known)

    def checkpoints(self) -> list[Any]:
        """Which checkpoints training left."""
        return self._rank_state.checkpoints()

    # ---- an entry ----

    def enter(self, run: Run) -> None:
        trainer = self.trainer
        strategy, module = trainer.strategy, trainer.lightning_module
        vars(module).pop("forward", None)  # Lightning replaces it during a step, which may have been interrupted
        if self._forward is not None:
            module.forward = self._forward
        strategy.protect(run, self)
        strategy.enter(run)
        self._run = run
        require_fitting_world(run, self._per_step, "KeepstepStrategy", None)
        source = source_of(self.plain, run._session)
        if isinstance(trainer.limit_train_batches, int) or trainer.limit_train_batches < 1:
            round_size = self._per_step or run.world_size
            source = limited(source, self._limit(math.ceil(source.length / round_size)) * round_size)
        self.loader = FitLoader(run, source, self._per_step, self)
        if self.loader.accumulation is not None:
            trainer.accumulate_grad_batches = self.loader.accumulation
        self._schedules.enter(run)
        schedules = [self._schedules, *self._schedules.plateaus]
        updates = Updates(self.loader, self._optimizers, schedules, [], None, waits_for_scaler=False)
        self._prepared = [PreparedOptimizer(each, updates) for each in self._optimizers]
        fresh = self._rank is None
        becomes_zero = run.rank == 0 and self._rank != 0
        self._rank = run.rank
        if becomes_zero:
            for each in trainer.callbacks:
                if isinstance(each, ProgressBar):
                    each.enable()  # a spare had no rank when it was set up
        self.events.enter(run, fresh, becomes_zero)
        self.replaying = run.version > 0
        if self.replaying and becomes_zero:
            loggers.take_over(trainer, strategy.session, self.loggers_key)
        if self.replaying and fresh:
            self._catch_up()
        self._rank_state.put_back(self._first if run.version == 0 else self._rank_state.taken)
        if strategy.session.welcome.elastic:
            self._rank_state.enter_world(run.rank)
            run._check_interrupted()
            trainer.fit_loop.epoch_loop.val_loop._combined_loader = None  # of as many ranks as there were
        if self.replaying:
            run._evaluations.step = run.version
            # Whether the next forward begins with rank 0's buffers. In manual optimization Lightning commits inside of
            # a forward, which leaves False.
            if isinstance(strategy.model, DistributedDataParallel):
                strategy.model.require_forward_param_sync = module.automatic_optimization
        else:
            self._before_the_first_step()

    def leave(self) -> None:
        """The entry is over, or interrupted: nothing of its generation is kept."""
        self.events.leave()
        loops.leave(self.trainer)
        self.trainer.strategy.leave()
        self.loader = self._run = None

    def protected(self) -> keepstep.State:
        """What a replacement receives."""
        named: dict[str, Any] = {"model": self.trainer.lightning_module, "progress": self._rank_state}
        for kind, items in (("optimizer", self._optimizers), ("schedule", self._schedules.all)):
            named |= {f"{kind}{number or ''}": each for number, each in enumerate(items)}
        return keepstep.State(**named)

    def _catch_up(self) -> None:
        """This process has a rank that another one held: its callbacks hear that training began, and the epoch."""
        trainer = self.trainer
        trainer.training = True
        assert self._run is not None
        with self._run.restored(), trainer.strategy.alone(), self.events.uncounted():
            trainer.fit_loop.on_run_start()
            self._rank_state.put_back(self._rank_state.taken)  # for the epoch's number
            call._call_callback_hooks(trainer, "on_train_epoch_start")
            call._call_lightning_module_hook(trainer, "on_train_epoch_start")

    def _before_the_first_step(self) -> None:
        trainer = self.trainer
        self.seed_end()
        if trainer.is_global_zero:
            loggers.publish(trainer, trainer.strategy.session, self.loggers_key)
        for each in trainer.callbacks:
            if isinstance(each, ModelCheckpoint):
                each.dirpath = trainer.strategy.broadcast(each.dirpath)  # a logger's version may be in it
        trainer._run_sanity_check()

    # ---- steps ----

    def prepared(self, optimizer: torch.optim.Optimizer) -> PreparedOptimizer:
        """The one whose ``step`` commits."""
        return next(each for each in self._prepared if each._optimizer is optimizer)

    @property
    def step(self) -> SummedLossStep:
        """The step that is under way."""
        assert self.loader is not None
        step = self.loader._step
        assert isinstance(step, SummedLossStep)
        return step

    def step_begins(self) -> None:
        """The end of the step before is over in this process."""
        assert self._run is not None
        self._run._evaluations.step = 0

    def commit(self, commit: Callable[[], None]) -> None:
        """The step that is under way, by `commit`."""
        run, trainer = self._run, self.trainer
        assert run is not None
        self._rank_state.take(self.closure, run.rank)
        commit()
        self._last = (run.version, trainer._results.batch)
        self.events.committed()
        self.seed_end()

    def seed_end(self) -> None:
        """What is drawn from here on, up to the next batch, follows from the version and the rank."""
        run = self._run
        assert run is not None
        seeds.seed_all(_engine.mix_seed(run.seed ^ _END, run.version, run.rank))

    def last_output(self) -> Any:
        """What the training step of the last committed step returned, as far as it is a loss."""
        return self._rank_state.output()

    def last_batch(self) -> Any:
        """This rank's last batch of the last committed step."""
        run, trainer = self._run, self.trainer
        assert run is not None and self.loader is not None
        version, batch = self._last
        if version != run.version:
            batch = trainer.precision_plugin.convert_input(self.loader.batch_before())
            batch = trainer.lightning_module._on_before_batch_transfer(batch, dataloader_idx=0)
            batch = call._call_strategy_hook(trainer, "batch_to_device", batch, dataloader_idx=0)
            self._last = (run.version, batch)
        return batch


def _require_recoverable(trainer: Any) -> None:
    module = trainer.lightning_module
    wrong = {
        "precision='16-mixed' (take 'bf16-mixed')": getattr(trainer.precision_plugin, "scaler", None) is not None,
        "overfit_batches": trainer.overfit_batches > 0,
        "reload_dataloaders_every_n_epochs": trainer.reload_dataloaders_every_n_epochs > 0,
        "val_check_interval as a time": trainer._val_check_time_interval is not None,
        "a dataloader_iter in training_step": "dataloader_iter" in inspect.signature(module.training_step).parameters,
    }
    optimizers = trainer.strategy.optimizers
    wrong["several optimizers"] = len(optimizers) > 1
    wrong["LBFGS"] = any(isinstance(each, torch.optim.LBFGS) for each in optimizers)
    for kind in (BaseFinetuning, BatchSizeFinder, GradientAccumulationScheduler, LearningRateFinder,
                 StochasticWeightAveraging, WeightAveraging):  # fmt: skip
        wrong[f"the callback {kind.__name__}"] = any(isinstance(each, kind) for each in trainer.callbacks)
    if found := [name for name, on in wrong.items() if on]:
        raise KeepstepError(f"Trainer.fit: this version cannot recover {'; '.join(found)}; leave it out")
    if any(isinstance(each, _MockOptimizer) for each in optimizers):
        raise KeepstepError("Trainer.fit: configure_optimizers returns no optimizer, so there is nothing to commit")
