"""An ``Accelerator`` whose objects outlive a fault.

They are prepared once per process, outside of the training function, and before a spare has a rank. So what is prepared
here stands for something that each entry of the training function makes anew: the replica, the share of the batches.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

import accelerate
from accelerate.utils import DistributedType
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader

import keepstep
from keepstep import KeepstepError
from keepstep._session import session_or_none
from keepstep.integrations.accelerate import process_state
from keepstep.integrations.accelerate.prepared import (
    EvaluationLoader,
    TrainingLoader,
    TrainingScheduler,
)
from keepstep.integrations.prepared_model import PreparedModel
from keepstep.torch.prepared.committing import PreparedOptimizer, Updates
from keepstep.torch.prepared.fixed_batch import batches_of
from keepstep.torch.prepared.plateau import PreparedPlateau
from keepstep.torch.runtime.run import Run

P = ParamSpec("P")
R = TypeVar("R")


class Accelerator(accelerate.Accelerator):
    """Accelerate's, with `recoverable` for the function that contains the training loop. Without ``keepstep run`` it is
    Accelerate's.

    The first ``DataLoader`` that is prepared is the training data; others are evaluated. Gradients are accumulated by
    ``accumulate``, schedules move with the optimizer.

    Args:
        global_batch: samples of a step over all ranks, at every number of ranks. ``gradient_accumulation_steps``
            follows from it, and schedules move once in a step. An elastic job needs it.
        on_entry: is called in every entry of the training function, before its loop begins: for `Run.publish`,
            `Run.checkpoint` and `Run.on`.

    Raises:
        KeepstepError: something cannot be recovered; says what.
    """

    def __init__(
        self,
        *args: Any,
        global_batch: int | None = None,
        on_entry: Callable[[Run], Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._global_batch = global_batch
        self._on_entry = on_entry
        self._training: TrainingLoader | None = None
        self._run: Run | None = None  # while the training function runs
        if session_or_none() is not None:
            self._require_recoverable()

    def recoverable(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorates the function that contains the training loop: after a fault it is entered again, in the same
        process, and its loader begins after the last committed step. It uses what `prepare` returned."""
        if session_or_none() is None:
            return function

        @keepstep.recoverable
        def loop(run: Run, /, *args: P.args, **kwargs: P.kwargs) -> R:
            try:
                self._enter(run)
                return function(*args, **kwargs)
            finally:
                self._leave()

        @functools.wraps(function)
        def recovered(*args: P.args, **kwargs: P.kwargs) -> R:
            result = loop(*args, **kwargs)
            for each in self._plateaus:
                each.finish()
            return result

        return recovered

    @property
    def _plateaus(self) -> list[PreparedPlateau]:
        return [each for each in self._schedulers if isinstance(each, PreparedPlateau)]

    def epochs(self, count: int) -> Iterable[int]:
        """The epochs up to `count` that are not over: ``for epoch in accelerator.epochs(3)``."""
        return range(count) if session_or_none() is None else self._loader.prepared.epochs(count)

    # ---- what is prepared ----

    def prepare_model(self, model: Any, device_placement: bool | None = None, evaluation_mode: bool = False) -> Any:
        if session_or_none() is None or evaluation_mode or not any(each.requires_grad for each in model.parameters()):
            return super().prepare_model(model, device_placement, evaluation_mode)
        prepared = PreparedModel(super().prepare_model(model, device_placement, evaluation_mode=True))
        self._models[-1] = prepared
        return prepared

    def prepare_data_loader(self, data_loader: DataLoader[Any], *args: Any, **kwargs: Any) -> Any:
        if session_or_none() is None or isinstance(data_loader, TrainingLoader | EvaluationLoader):
            return super().prepare_data_loader(data_loader, *args, **kwargs)
        if self._training is None:
            per_step = None
            if self._global_batch is not None:
                per_step = batches_of(self._global_batch, data_loader, "Accelerator")
            self._training = TrainingLoader(data_loader, self, per_step)
            self._dataloaders.append(self._training)
            return self._training
        share = functools.partial(super().prepare_data_loader, data_loader, *args, **kwargs)
        return EvaluationLoader(data_loader, share, self)

    def prepare_scheduler(self, scheduler: LRScheduler) -> Any:
        prepared = super().prepare_scheduler(scheduler)
        if session_or_none() is not None:
            if isinstance(scheduler, ReduceLROnPlateau):
                self._schedulers[-1] = PreparedPlateau(scheduler)
                return self._schedulers[-1]
            prepared.__class__ = TrainingScheduler
            prepared.split_batches |= self._global_batch is not None  # Accelerate's: it moves once, not once a rank
        return prepared

    def unwrap_model(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        return super().unwrap_model(model.module if isinstance(model, PreparedModel) else model, *args, **kwargs)

    # ---- collectives: one that a fault cut short returns zeros ----

    def gather(self, *args: Any, **kwargs: Any) -> Any:
        return self._whole(super().gather(*args, **kwargs))

    def gather_for_metrics(self, *args: Any, **kwargs: Any) -> Any:
        return self._whole(super().gather_for_metrics(*args, **kwargs))

    def reduce(self, *args: Any, **kwargs: Any) -> Any:
        return self._whole(super().reduce(*args, **kwargs))

    def wait_for_everyone(self) -> None:
        self._whole(super().wait_for_everyone())

    def _whole(self, result: Any) -> Any:
        if self._run is not None:
            self._run._check_interrupted()
        return result

    # ---- an entry ----

    @property
    def _loader(self) -> TrainingLoader:
        if self._training is None:
            raise KeepstepError("Accelerator: no DataLoader is prepared; pass the training data's to prepare()")
        return self._training

    def _enter(self, run: Run) -> None:
        models = [each for each in self._models if isinstance(each, PreparedModel)]
        protected = {f"model{number or ''}": each.module for number, each in enumerate(models)}
        for name, prepared in (("optimizer", self._optimizers), ("scheduler", self._schedulers)):
            protected |= {f"{name}{number or ''}": getattr(each, name) for number, each in enumerate(prepared)}
        self._run = run
        run.setup(lambda: keepstep.State(**protected))
        if self._on_entry is not None:
            self._on_entry(run)
        options = {} if self.ddp_handler is None else self.ddp_handler.to_kwargs()
        for each in models:
            each.enter(run.ddp(each.module, **options))
        process_state.enter(run)
        self.step = 0
        prepared_loader = self._loader.enter(run)
        if prepared_loader.accumulation is not None:
            self.gradient_accumulation_steps = prepared_loader.accumulation
        optimizers = [each.optimizer for each in self._optimizers]
        for plateau in self._plateaus:
            plateau.enter(run, prepared_loader)
        updates = Updates(prepared_loader, optimizers, self._schedulers, [], None, waits_for_scaler=False)
        for each in self._optimizers:
            each.optimizer = PreparedOptimizer(each.optimizer, updates)

    def _leave(self) -> None:
        """What was prepared for this entry goes with it."""
        self._run = None
        for each in self._optimizers:
            if isinstance(each.optimizer, PreparedOptimizer):
                each.optimizer = each.optimizer._optimizer

    def _require_recoverable(self) -> None:
        wrong = {
            "FSDP": self.distributed_type == DistributedType.FSDP,
            "DeepSpeed": self.distributed_type == DistributedType.DEEPSPEED,
            "Megatron-LM": self.distributed_type == DistributedType.MEGATRON_LM,
            "parallelism_config": self.parallelism_config is not None,
            "mixed_precision='fp16' (take 'bf16')": self.scaler is not None,
            "split_batches": self.split_batches,
            "dispatch_batches": self.dispatch_batches,
            "step_scheduler_with_optimizer=False": not self.step_scheduler_with_optimizer,
        }
        if found := [name for name, on in wrong.items() if on]:
            raise KeepstepError(f"Accelerator: this version cannot recover {', '.join(found)}; leave it out")
