"""``Trainer(strategy="keepstep")``: data-parallel training whose faults Lightning does not see."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from lightning.fabric.utilities.optimizer import _optimizers_to_device
from lightning.fabric.utilities.seed import reset_seed
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.strategies.launchers.launcher import _Launcher
from lightning.pytorch.trainer.states import TrainerFn
from lightning_utilities.core.rank_zero import rank_zero_only

from keepstep import KeepstepError
from keepstep._session import session
from keepstep.integrations.lightning import loggers, stages
from keepstep.integrations.lightning.environment import KeepstepEnvironment, prepare_data
from keepstep.integrations.lightning.fit import Fit
from keepstep.integrations.lightning.shared_strategy import SharedStrategy
from keepstep.torch.runtime.run import Run


class KeepstepStrategy(SharedStrategy, DDPStrategy):
    """`fit` loses no committed step: a rank that dies is replaced, and all go on from the last committed step.

    Args:
        global_batch: samples of a step over all ranks, at every number of ranks. ``accumulate_grad_batches`` follows
            from it, and the Trainer's other numbers of batches count steps. An elastic job needs it.
        on_entry: is called in every entry of the training function, before its loop begins: for `Run.publish`,
            `Run.checkpoint` and `Run.on`.
        options: go to DistributedDataParallel.

    Attributes:
        session: this process's place in the job.
        fit: the training that is under way, or was the last; None before.
        lacks_training: this process came after training was over.
        builds_in_entry: model and optimizers are made when there is a rank, by `protect`.

    Raises:
        KeepstepError: outside of ``keepstep run``.
    """

    strategy_name = "keepstep"
    builds_in_entry = False

    def __init__(
        self, *, global_batch: int | None = None, on_entry: Callable[[Run], Any] | None = None, **options: Any
    ) -> None:
        self.global_batch = global_batch
        self._on_entry = on_entry
        self.session = session("Trainer(strategy='keepstep')")
        super().__init__(cluster_environment=KeepstepEnvironment(self.session), **options)
        for name in ("ddp_comm_state", "ddp_comm_hook", "ddp_comm_wrapper", "model_averaging_period"):
            if getattr(self, f"_{name}") is not None:
                raise KeepstepError(f"KeepstepStrategy: {name} cannot be recovered; leave it out")
        if torch.cuda.is_available() or not self.session.welcome.spare:
            self.session.need_rank("Lightning")  # models go to the rank's GPU when they are made
        self.fit: Fit | None = None
        self.lacks_training = False

    # ---- this process ----

    def _configure_launcher(self) -> None:
        self._launcher = _KeepstepLauncher(self)

    def set_world_ranks(self) -> None:
        rank_zero_only.rank = self.global_rank  # type: ignore[attr-defined]

    def setup_distributed(self) -> None:
        """The process group belongs to a generation; an entry makes it."""
        reset_seed()
        self.set_world_ranks()

    def setup(self, trainer: Any) -> None:
        """As of a DDPStrategy, without the wrapper, which belongs to a generation, too."""
        assert self.accelerator is not None and self.model is not None
        fitting = trainer.state.fn == TrainerFn.FITTING
        self.accelerator.setup(trainer)
        if fitting and self._layer_sync:
            self.model = self._layer_sync.apply(self.model)
        self.precision_plugin.convert_module(self.model)
        self.model_to_device()
        if fitting:
            self.setup_optimizers(trainer)
        self.setup_precision_plugin()
        if fitting:
            _optimizers_to_device(self.optimizers, self.root_device)

    def protect(self, run: Run, fit: Fit) -> None:
        """An entry of `fit` begins: its state is protected, and the model wrapped."""
        run.setup(fit.protected)
        if self._on_entry is not None:
            self._on_entry(run)
        self.model = run.ddp(fit.trainer.lightning_module, **self._ddp_kwargs)

    def enter(self, run: Run) -> None:
        """An entry begins: this process has a rank, perhaps for the first time."""
        self.run = run
        self.set_world_ranks()

    def leave(self) -> None:
        """It is over, or interrupted."""
        self.run = None

    # ---- steps ----

    def backward(self, closure_loss: torch.Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss = super().backward(closure_loss, optimizer, *args, **kwargs)
        if self.fit is not None and self.run is not None:
            self.fit.step.losses.append(closure_loss.detach())
        return loss

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **kwargs: Any) -> Any:
        if self.fit is None or self.run is None:  # a loop that somebody runs by hand, outside of training
            return super().optimizer_step(optimizer, closure, model, **kwargs)
        self.fit.closure = closure
        return super().optimizer_step(self.fit.prepared(optimizer), closure, model, **kwargs)

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        if self.lacks_training:
            raise KeepstepError(
                "Trainer.save_checkpoint: this process replaced one that died after training, so its model is not "
                "trained. Save in training (ModelCheckpoint, or on_train_end of a callback), or call "
                "trainer.validate() or trainer.test() on all ranks first: that brings the weights here"
            )
        if self.is_global_zero and self.fit is not None:
            self.fit.events.saving(filepath)
        super().save_checkpoint(checkpoint, filepath, storage_options)

    def reduce(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return self._whole(super().reduce, tensor, *args, **kwargs) if self._has_peers else tensor


class _KeepstepLauncher(_Launcher):
    """Starts nothing. Called when a ``fit``, ``validate``, ``test`` or ``predict`` begins, with the Trainer."""

    is_interactive_compatible = False

    def __init__(self, strategy: KeepstepStrategy) -> None:
        self._strategy = strategy

    def launch(self, function: Callable[..., Any], *args: Any, trainer: Any = None, **kwargs: Any) -> Any:
        strategy = self._strategy
        if trainer.state.fn == TrainerFn.FITTING:
            strategy.fit = Fit(trainer)
            loggers.follow(trainer, strategy.session, strategy.fit.loggers_key)
            trainer._run_stage = functools.partial(stages.fit, trainer)
        else:
            trainer._run_stage = functools.partial(stages.evaluate, trainer)
        trainer._data_connector.prepare_data = functools.partial(prepare_data, trainer, strategy.session)
        trainer._signal_connector.register_signal_handlers = _leave_signals
        return function(*args, **kwargs)

    def kill(self, signum: Any) -> None:
        pass


def _leave_signals() -> None:
    """SIGTERM is the agent's: notices of preemption come from it."""
