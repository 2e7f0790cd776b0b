"""`recoverable`: a Trainer whose training loses no step.

Each entry of the training function runs the Trainer's own loop, from the last committed step on. The Trainer object,
its model, data set, optimizer and schedule are built once per process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader
from transformers import Trainer
from transformers import trainer as hf_trainer
from transformers.trainer_utils import TrainOutput

import keepstep
from keepstep import KeepstepError
from keepstep._session import session_or_none
from keepstep.integrations.accelerate import process_state
from keepstep.integrations.transformers.callbacks import once
from keepstep.integrations.transformers.loader import TrainerLoader, TrainerOptimizer, TrainerStep
from keepstep.integrations.transformers.progress import Progress
from keepstep.torch.distributed import agreement
from keepstep.torch.prepared.batch_source import source_of
from keepstep.torch.prepared.committing import PreparedSchedule, Updates
from keepstep.torch.runtime.run import Run

AnyTrainer = TypeVar("AnyTrainer", bound=Trainer)
_HERE = "the last committed step"  # instead of a checkpoint's path


def recoverable(trainer: AnyTrainer) -> AnyTrainer:
    """`trainer` itself: its ``train()`` loses no committed step under ``keepstep run``. Without it nothing changes.

    A rank that dies is replaced, and all ranks go on from the last committed step, in the same process: no checkpoint
    is loaded, nothing is downloaded or tokenized again. Callbacks hear of each event of a step once.

    Raises:
        KeepstepError: this Trainer cannot be recovered; says why.
    """
    if not isinstance(trainer, Trainer):
        raise KeepstepError(f"recoverable: {type(trainer).__qualname__} is no transformers.Trainer")
    if not isinstance(trainer, RecoverableTrainer):
        kind = type(trainer)
        trainer.__class__ = type(f"Recoverable{kind.__name__}", (RecoverableTrainer, kind), {})
    return trainer


class RecoverableTrainer(Trainer):
    """For subclasses of one's own: ``class Mine(RecoverableTrainer, SFTTrainer)``; else use `recoverable`."""

    _run: Run | None = None
    _keepstep_state: keepstep.State | None = None
    _loader: TrainerLoader | None = None
    _resumed: dict[str, Any] | None = None  # the progress with which this entry began
    _replaying = False  # the end of the last committed step, which is computed already

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> TrainOutput:
        if session_or_none() is None:
            return super().train(resume_from_checkpoint, **kwargs)
        _require_recoverable(self)
        train = super().train

        @keepstep.recoverable
        def trainers_loop(run: Run) -> list[Any]:
            self._enter(run)
            resume = resume_from_checkpoint if run.version == 0 else None
            return list(train(resume, **kwargs))

        try:
            return TrainOutput(*trainers_loop())
        finally:
            self._run = self._loader = None

    # ---- an entry ----

    def _enter(self, run: Run) -> None:
        self._run = run
        state = run.setup(self._build)
        self._keepstep_state = state
        handler = self.accelerator.ddp_handler
        replica = run.ddp(self.model, **({} if handler is None else handler.to_kwargs()))
        process_state.enter(run)
        loader = self._plain_loader()
        self._loader = TrainerLoader(run, source_of(loader, run._session), self, loader.dataset)
        self.lr_scheduler = PreparedSchedule(state.schedule)
        updates = Updates(self._loader, [state.optimizer], [self.lr_scheduler], [], None, waits_for_scaler=False)
        self.optimizer = TrainerOptimizer(state.optimizer, updates, self)
        self.model_wrapped = replica
        once(self.callback_handler).enter()
        self._replaying, self._resumed = False, None
        if run.version:
            progress = state.progress
            self._replaying = not self._ended_everywhere(run)
            if self._replaying:
                progress.ended = None
            self._resumed = progress.committed if self._replaying else progress.ended
            progress.put_back(self._resumed)

    def _build(self) -> keepstep.State:
        """What is protected; before this process has a rank."""
        plain = self._plain_loader()
        world = session_or_none().welcome.world  # type: ignore[union-attr]
        self.create_optimizer()
        if self.lr_scheduler is None:
            *_, max_steps = self.set_initial_training_values(self.args, _Sized(plain.dataset, -(-len(plain) // world)))
            self.create_scheduler(num_training_steps=max_steps)
        if isinstance(self.lr_scheduler, ReduceLROnPlateau):
            raise KeepstepError(
                "recoverable: ReduceLROnPlateau moves behind an evaluation, outside of the commit; choose another "
                "lr_scheduler_type"
            )
        self.accelerator.prepare_model(self.model, evaluation_mode=True)  # mixed precision and compilation, no wrapper
        return keepstep.State(
            model=self.model, optimizer=self.optimizer, schedule=self.lr_scheduler, progress=Progress(self)
        )

    def _plain_loader(self) -> DataLoader[Any]:
        """The DataLoader that the Trainer would share out among the ranks."""
        with _not_prepared(self.accelerator):
            return super().get_train_dataloader()

    # ---- what the end of a step is ----

    def _key(self, rank: int) -> str:
        return self._run._session.key(f"trainer/ended/{rank}")

    def _step_begins(self) -> None:
        """The end of the step before is over in this process."""
        progress, run = self._keepstep_state.progress, self._run
        if progress.committed is None or run.rehearsing:
            return
        progress.end()
        run._session.store("set", self._key(run.rank), str(run.version).encode(), ends_with_generation=False)

    def _ended_everywhere(self, run: Run) -> bool:
        """Whether what follows the last commit was done on all ranks, by this process or by one that is gone."""
        _, _, known, value = run._session.store("get", self._key(run.rank), timeout_ms=1, ends_with_generation=False)
        return agreement.sum_of_ranks(int(known and int(value) == run.version)) == run.world_size

    def _committing(self, loss: float, begin: int) -> None:
        """Runs in the commit of a step, whose mean loss is `loss`, and which began with batch `begin`."""
        if self.args.logging_nan_inf_filter and not torch.isfinite(torch.tensor(loss)):
            self._tr_loss += self._tr_loss / (1 + self.state.global_step - self._globalstep_last_logged)
        else:
            self._tr_loss += loss
        self._keepstep_state.progress.commit(begin)

    # ---- the Trainer's loop ----

    def get_train_dataloader(self) -> Any:
        return super().get_train_dataloader() if self._loader is None else self._loader

    def _init_training_state(
        self, max_steps: int, steps_per_epoch: int, epochs: int, resume_from_checkpoint: str | None, trial: Any
    ) -> tuple[int, int]:
        if self._run is None or self._run.version == 0:
            begins = super()._init_training_state(max_steps, steps_per_epoch, epochs, resume_from_checkpoint, trial)
            if self._loader is not None and any(begins):
                self._loader._begin_at(*begins)
            return begins
        self.state.init_training_references(self, max_steps, epochs, trial)
        position = self._resumed["begin"] if self._replaying else self._run._committed.position
        return self._loader._place(position)

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: str | None) -> Any:
        if self._run is None:
            return super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)
        self.accelerator._models.append(self.model)  # prepared in `_build`
        if resume_from_checkpoint is not None:
            self._load_optimizer_and_scheduler(resume_from_checkpoint)
        for name in ("model", "optimizer", "lr_scheduler"):
            setattr(self.callback_handler, name, getattr(self, name))
        self.callback_handler.train_dataloader = train_dataloader
        return self.model_wrapped, train_dataloader

    def _run_epoch(
        self,
        *,
        epoch: int,
        epochs_trained: int,
        resume_from_checkpoint: str | None,
        **how: Any,
    ) -> None:
        if self._resumed is not None and epoch == epochs_trained:
            self._keepstep_state.progress.put_back_counters(self._resumed)
            resume_from_checkpoint = _HERE
        super()._run_epoch(
            epoch=epoch, epochs_trained=epochs_trained, resume_from_checkpoint=resume_from_checkpoint, **how
        )

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Random numbers follow from the step."""
        if self._run is None:
            super()._load_rng_state(checkpoint)

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device) -> Any:
        if self._replaying:
            return [None] * num_batches, None
        return super().get_batch_samples(epoch_iterator, num_batches, device)

    def training_step(self, model: torch.nn.Module, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        if self._replaying:
            return torch.zeros((), device=self.args.device)
        loss = super().training_step(model, inputs, num_items_in_batch)
        step = None if self._loader is None else self._loader._step
        if step is None:
            return loss
        assert isinstance(step, TrainerStep)
        step.losses.append(loss)
        return torch.zeros_like(loss)  # the commit adds the mean of all ranks

    def floating_point_ops(self, inputs: Any) -> int:
        return 0 if self._replaying else super().floating_point_ops(inputs)

    def _track_num_input_tokens(self, inputs: Any) -> None:
        if not self._replaying:
            super()._track_num_input_tokens(inputs)

    def _clip_grad_norm(self, model: torch.nn.Module) -> Any:
        return self._keepstep_state.progress.grad_norm if self._replaying else super()._clip_grad_norm(model)

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> Any:
        if self._run is None:
            return super()._get_grad_norm(model, grad_norm=grad_norm)
        progress = self._keepstep_state.progress
        if not self._replaying:
            found = super()._get_grad_norm(model, grad_norm=grad_norm)
            progress.grad_norm = None if found is None else float(found)
        return progress.grad_norm

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        super().log(logs, *args, **kwargs)
        if self._loader is not None and self._loader._step is not None:
            self._loader.log(**{name: value for name, value in logs.items() if isinstance(value, int | float)})


class _Sized:
    """A loader, as far as the Trainer's arithmetic asks for it."""

    def __init__(self, dataset: Any, length: int) -> None:
        self.dataset = dataset
        self._length = length

    def __len__(self) -> int:
        return self._length


@contextlib.contextmanager
def _not_prepared(accelerator: Any) -> Iterator[None]:
    """The Trainer's DataLoader stays as it is."""
    accelerator.prepare_data_loader = lambda loader, *_, **__: loader
    try:
        yield
    finally:
        del accelerator.prepare_data_loader


def _require_recoverable(trainer: Trainer) -> None:
    args = trainer.args
    wrong = {
        "fsdp": trainer.is_fsdp_enabled,
        "deepspeed": trainer.is_deepspeed_enabled,
        "fp16=True (take bf16)": args.fp16,
        "auto_find_batch_size=True": args.auto_find_batch_size,
        "accelerator_config.split_batches": args.accelerator_config.split_batches,
        "accelerator_config.dispatch_batches": args.accelerator_config.dispatch_batches,
    }
    if found := [name for name, on in wrong.items() if on]:
        raise KeepstepError(f"recoverable: this version cannot recover a Trainer with {', '.join(found)}; leave it out")


def _skip_first_batches(dataloader: Any, num_batches: int = 0) -> Any:
    """A `TrainerLoader` begins where it has to."""
    return dataloader if isinstance(dataloader, TrainerLoader) else _skip(dataloader, num_batches)


_skip = hf_trainer.skip_first_batches
hf_trainer.skip_first_batches = _skip_first_batches
