"""``Fabric(strategy="keepstep")``: what was set up outlives a fault; ``fabric.launch(train)`` is entered again."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from lightning.fabric.fabric import Fabric, _do_nothing
from lightning.fabric.strategies.ddp import DDPStrategy
from lightning.fabric.strategies.launchers.launcher import _Launcher
from lightning.fabric.strategies.strategy import _BackwardSyncControl
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning_utilities.core.rank_zero import rank_zero_only as utilities_rank_zero_only
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, DistributedSampler

import keepstep
from keepstep import KeepstepError
from keepstep._session import session
from keepstep.integrations.lightning import loggers
from keepstep.integrations.lightning.environment import KeepstepEnvironment
from keepstep.integrations.lightning.fabric.loader import TrainingLoader
from keepstep.integrations.lightning.fabric.logs import Logs
from keepstep.integrations.lightning.shared_strategy import SharedStrategy
from keepstep.integrations.lightning.stages import saves_are_complete
from keepstep.integrations.prepared_model import PreparedModel
from keepstep.torch.prepared.committing import PreparedOptimizer, PreparedSchedule, Updates
from keepstep.torch.prepared.fixed_batch import require_fitting_world
from keepstep.torch.prepared.plateau import PreparedPlateau
from keepstep.torch.prepared.prepared_loader import SummedLossStep
from keepstep.torch.runtime.run import Run


class KeepstepFabricStrategy(SharedStrategy, DDPStrategy):
    """Data-parallel training. The function given to ``fabric.launch``, once something is set up, is recoverable.

    The first DataLoader that is set up is the training data; others are evaluated.

    Args:
        global_batch: samples of a step over all ranks, at every number of ranks. `accumulation` follows from it. An
            elastic job needs it.
        on_entry: is called in every entry of the training function, before its loop begins: for `Run.publish`,
            `Run.checkpoint` and `Run.on`.
        options: go to DistributedDataParallel.

    Attributes:
        session: this process's place in the job.
        logs: what the loop logs.

    Raises:
        KeepstepError: outside of ``keepstep run``.
    """

    strategy_name = "keepstep"

    def __init__(
        self, *, global_batch: int | None = None, on_entry: Callable[[Run], Any] | None = None, **options: Any
    ) -> None:
        self.global_batch = global_batch
        self._on_entry = on_entry
        self.session = session("Fabric(strategy='keepstep')")
        super().__init__(cluster_environment=KeepstepEnvironment(self.session), **options)
        if torch.cuda.is_available() or not self.session.welcome.spare:
            self.session.need_rank("Fabric")  # models go to the rank's GPU when they are set up
        self._backward_sync_control = _SyncControl()
        self.logs = Logs(self.session)
        self._models: list[PreparedModel] = []
        self._optimizers: list[Optimizer] = []
        self._schedules: list[PreparedSchedule] = []
        self._epoch_schedules: list[PreparedSchedule] = []
        self._plateaus: list[PreparedPlateau] = []
        self._training: TrainingLoader | None = None
        self._shares: list[DistributedSampler[Any]] = []  # of data that is evaluated
        self._prepared: list[PreparedOptimizer] = []
        self._loggers_key = ""
        self._first = 0  # calls of rank_zero_first

    # ---- what the training function asks for ----

    def epochs(self, count: int) -> Iterable[int]:
        """The epochs up to `count` that are not over, each with all that the loop does in it."""
        return self._loader.prepared.epochs(count)

    @property
    def step(self) -> int:
        """The step that the newest batch belongs to, from 1; a checkpoint's are counted."""
        return self._loader.step

    @property
    def accumulation(self) -> int:
        """This rank's batches of each step, with a global batch: divide the loss by it."""
        accumulation = self._loader.prepared.accumulation
        if accumulation is None:
            raise KeepstepError(
                "accumulation: the loop decides how many batches a step has, unless there is a global batch: "
                "Fabric(strategy=KeepstepFabricStrategy(global_batch=64))"
            )
        return accumulation

    @property
    def ends_step(self) -> bool:
        """With a global batch: whether the newest batch is the last one of its step, so the optimizer has to step."""
        return self._loader.prepared.ends_step

    def schedule(self, scheduler: Any, interval: str = "epoch") -> PreparedSchedule | PreparedPlateau:
        """`scheduler` moves in the commit: of each epoch's last step, or of each ``"step"``. Call it before
        ``fabric.launch``, and go on with what it returns, whose ``step()`` moves nothing. ReduceLROnPlateau moves when
        the commit begins that follows its ``step(metric)``."""
        if interval not in ("epoch", "step"):
            raise KeepstepError(f"schedule(interval={interval!r}): 'epoch' or 'step'")
        self._require_outside("schedule")
        if isinstance(scheduler, ReduceLROnPlateau):
            self._plateaus.append(PreparedPlateau(scheduler))
            return self._plateaus[-1]
        prepared = PreparedSchedule(scheduler)
        (self._schedules if interval == "step" else self._epoch_schedules).append(prepared)
        return prepared

    # ---- what is set up ----

    def setup_module_and_optimizers(self, module: Any, optimizers: list[Optimizer], scheduler: Any = None) -> Any:
        module, optimizers, _ = super().setup_module_and_optimizers(module, optimizers)
        return module, optimizers, None if scheduler is None else self.schedule(scheduler, "step")

    def setup_module(self, module: torch.nn.Module) -> torch.nn.Module:  # type: ignore[override]
        self._require_outside("fabric.setup")
        if not any(each.requires_grad for each in module.parameters()):
            return module
        self._models.append(PreparedModel(module))
        return self._models[-1]

    def setup_optimizer(self, optimizer: Optimizer) -> Optimizer:
        self._require_outside("fabric.setup")
        if isinstance(optimizer, torch.optim.LBFGS):
            raise KeepstepError("Fabric: this version cannot recover LBFGS; take another optimizer")
        self._optimizers.append(optimizer)
        return optimizer

    def process_dataloader(self, dataloader: DataLoader[Any]) -> Any:
        self._require_outside("fabric.setup_dataloaders")
        if self._training is None:
            self._training = TrainingLoader(dataloader, self)
            return self._training
        if isinstance(sampler := getattr(dataloader, "sampler", None), DistributedSampler):
            self._shares.append(sampler)
        return dataloader

    @property
    def _loader(self) -> TrainingLoader:
        if self._training is None:
            raise KeepstepError("Fabric: there is no training data; pass its DataLoader to fabric.setup_dataloaders")
        return self._training

    def _require_outside(self, what: str) -> None:
        if self.run is not None:
            raise KeepstepError(
                f"{what} in the training function, which is entered again after a fault: move it in front of "
                "fabric.launch(train), where it runs once in each process"
            )

    # ---- this process ----

    def _configure_launcher(self) -> None:
        self._launcher = _KeepstepLauncher(self)

    def _setup_distributed(self) -> None:
        """The process group belongs to a generation; an entry makes it."""
        self._set_world_ranks()

    def _set_world_ranks(self) -> None:
        rank_zero_only.rank = utilities_rank_zero_only.rank = self.global_rank  # type: ignore[attr-defined]

    @contextlib.contextmanager
    def rank_zero_first(self, local: bool) -> Iterator[None]:
        """``fabric.rank_zero_first``. Before training there is no process group: ranks wait for a key in the Store."""
        if self.run is not None:
            first = (self.local_rank if local else self.global_rank) == 0
            if not first:
                self.barrier()
            yield
            if first:
                self.barrier()
            return
        self._first += 1
        node = f"{self.node_rank}/" if local else ""
        key = self.session.key(f"first/{node}{self._first}")
        first = (self.local_rank if local else self.global_rank) == 0 and self.session.assignment is not None
        if not first:
            self.session.store("wait", key, ends_with_generation=False)
        yield
        if first:
            self.session.store("set", key, b"1", ends_with_generation=False)

    # ---- an entry ----

    def train(self, fabric: Fabric, function: Callable[[], Any]) -> Any:
        """Runs `function` until it has returned on all ranks; after a fault it is entered again."""
        self._require_recoverable()
        self._loggers_key = loggers.key_of_training()
        loggers.follow(fabric, self.session, self._loggers_key)

        @keepstep.recoverable(rehearse=False)
        def fabric_loop(run: Run) -> Any:
            try:
                self._enter(fabric, run)
                result = function()
                self.logs.flush()
                saves_are_complete(self)
                return result
            finally:
                self._leave()

        result = fabric_loop()
        for each in self._plateaus:
            each.finish()
        return result

    def _enter(self, fabric: Fabric, run: Run) -> None:
        run.setup(self._protected)
        if self._on_entry is not None:
            self._on_entry(run)
        for each in self._models:
            vars(each.module).pop("forward", None)  # Fabric replaces it during a call, which may have been interrupted
            each.enter(run.ddp(each.module, **self._ddp_kwargs))
        self.run = run
        self._set_world_ranks()
        require_fitting_world(run, self._loader.per_step, "KeepstepFabricStrategy", None)
        for sampler in self._shares:
            if sampler.num_replicas != run.world_size:
                _share_out_anew(sampler, run.world_size)
            sampler.rank = run.rank
        loader = self._loader.enter(run, self.logs)
        schedules = [*self._schedules, *(each.enter(run, loader) for each in self._plateaus)]
        updates = Updates(loader, self._optimizers, schedules, self._epoch_schedules, None, False)
        self._prepared = [PreparedOptimizer(each, updates) for each in self._optimizers]
        if self.is_global_zero:
            loggers.follow(fabric, self.session, self._loggers_key)
            loggers.publish(fabric, self.session, self._loggers_key)
        self.logs.enter(fabric, run, loader)

    def _leave(self) -> None:
        self.logs.leave()
        self.run = None
        for each in self._models:
            each.enter(None)

    def _protected(self) -> keepstep.State:
        named: dict[str, Any] = {"logs": self.logs}
        for kind, items in (
            ("model", [each.module for each in self._models]),
            ("optimizer", self._optimizers),
            ("schedule", [each._schedule for each in self._schedules + self._epoch_schedules]),
            ("plateau", [each.scheduler for each in self._plateaus]),
        ):
            named |= {f"{kind}{number or ''}": each for number, each in enumerate(items)}
        return keepstep.State(**named)

    def _require_recoverable(self) -> None:
        if getattr(self.precision, "scaler", None) is not None:
            raise KeepstepError("Fabric: this version cannot recover precision='16-mixed'; take 'bf16-mixed'")

    # ---- steps ----

    def backward(self, tensor: torch.Tensor, module: Any, *args: Any, **kwargs: Any) -> None:
        super().backward(tensor, module, *args, **kwargs)
        step = None if self.run is None else self._loader.prepared._step
        if isinstance(step, SummedLossStep) and not step.committed and tensor.numel() == 1:
            step.losses.append(tensor.detach())

    def optimizer_step(self, optimizer: Any, **kwargs: Any) -> Any:
        if self.run is None:
            raise KeepstepError(
                "optimizer.step() outside of the training function; move the loop into a function, and call it by "
                "fabric.launch(train), after fabric.setup and fabric.setup_dataloaders"
            )
        prepared = next(each for each in self._prepared if each._optimizer is optimizer)
        return super().optimizer_step(prepared, **kwargs)

    def all_reduce(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return self._whole(super().all_reduce, tensor, *args, **kwargs) if self._has_peers else tensor

    # ---- state ----

    def get_module_state_dict(self, module: torch.nn.Module) -> dict[str, Any]:
        return super().get_module_state_dict(_user_module(module))

    def load_module_state_dict(self, module: torch.nn.Module, state_dict: dict[str, Any], strict: bool = True) -> None:
        super().load_module_state_dict(_user_module(module), state_dict, strict)


def _share_out_anew(sampler: DistributedSampler[Any], ranks: int) -> None:
    epoch = sampler.epoch
    DistributedSampler.__init__(sampler, sampler.dataset, ranks, 0, sampler.shuffle, sampler.seed, sampler.drop_last)
    sampler.epoch = epoch


def _user_module(module: torch.nn.Module) -> torch.nn.Module:
    return module.module if isinstance(module, PreparedModel) else module


class _SyncControl(_BackwardSyncControl):
    def no_backward_sync(self, module: Any, enabled: bool) -> contextlib.AbstractContextManager[None]:
        return module.no_sync() if enabled else contextlib.nullcontext()


class _KeepstepLauncher(_Launcher):
    """Starts nothing. What Fabric launches once something is set up is the training function."""

    is_interactive_compatible = False

    def __init__(self, strategy: KeepstepFabricStrategy) -> None:
        self._strategy = strategy

    def launch(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        fabric: Fabric = function.func.__self__  # type: ignore[attr-defined]
        call = functools.partial(function, *args, **kwargs)
        if function.args[0] is _do_nothing or not self._strategy._optimizers:  # type: ignore[attr-defined]
            return call()
        return self._strategy.train(fabric, call)

    def kill(self, signum: Any) -> None:
        pass
