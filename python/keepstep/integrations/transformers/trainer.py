"""`recoverable`: a Trainer whose training loses no step.

Each entry of the training function runs the Trainer's own loop, from the last committed step on. The Trainer object,
its model, data set, optimizer and schedule are built once per process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader
from transformers import Trainer
from transformers import trainer as hf_trainer
from transformers.optimization import GreedyLR
from transformers.trainer_utils import TrainOutput

import keepstep
from keepstep import KeepstepError
from keepstep._session import session_or_none
from keepstep.integrations.accelerate import process_state
from keepstep.integrations.transformers.entry import Entry
from keepstep.integrations.transformers.loader import TrainerLoader
from keepstep.integrations.transformers.progress import Progress
from keepstep.integrations.transformers.rank_values import RankValues
from keepstep.torch.prepared.fixed_batch import batches_of
from keepstep.torch.prepared.plateau import PreparedPlateau
from keepstep.torch.runtime.run import Run

AnyTrainer = TypeVar("AnyTrainer", bound=Trainer)
R = TypeVar("R")
_HERE = "the last committed step"  # instead of a checkpoint's path


def recoverable(
    trainer: AnyTrainer, *, global_batch: int | None = None, on_entry: Callable[[Run], Any] | None = None
) -> AnyTrainer:
    """`trainer` itself: its ``train()`` loses no committed step under ``keepstep run``. Without it nothing changes.

    A rank that dies is replaced, and all ranks go on from the last committed step, in the same process: no checkpoint
    is loaded, nothing is downloaded or tokenized again. Callbacks hear of each event of a step once.

    Args:
        global_batch: samples of a step over all ranks, at every number of ranks. ``gradient_accumulation_steps``
            follows from it. An elastic job needs it. None: as many as the arguments and the number of ranks make.
        on_entry: is called in every entry of the training function, before its loop begins: for `Run.publish`,
            `Run.checkpoint` and `Run.on`.

    Raises:
        KeepstepError: this Trainer cannot be recovered; says why.
    """
    if not isinstance(trainer, Trainer):
        raise KeepstepError(f"recoverable: {type(trainer).__qualname__} is no transformers.Trainer")
    if not isinstance(trainer, RecoverableTrainer):
        kind = type(trainer)
        trainer.__class__ = type(f"Recoverable{kind.__name__}", (RecoverableTrainer, kind), {})
    if global_batch is not None:
        trainer.global_batch = global_batch
    if on_entry is not None:
        trainer.on_entry = on_entry
    return trainer


class RecoverableTrainer(Trainer):
    """For subclasses of one's own: ``class Mine(RecoverableTrainer, SFTTrainer)``; else use `recoverable`."""

    # Names of attributes that a subclass changes in training, and that may differ between ranks: numbers, text, tensors
    # and containers of these.
    rank_values: tuple[str, ...] = ()
    global_batch: int | None = None  # see `recoverable`
    on_entry: Callable[[Run], Any] | None = None

    lr_scheduler: Any
    _entry: Entry | None = None  # while the training function runs
    _lacks_training = False  # this process came after training was over

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> TrainOutput:
        if session_or_none() is None:
            return super().train(resume_from_checkpoint, **kwargs)
        _require_recoverable(self)
        train = super().train

        @keepstep.recoverable
        def trainers_loop(run: Run) -> list[Any]:
            state, plain = run.setup(self._build), self._plain_loader()
            if self.on_entry is not None:
                self.on_entry(run)
            self._entry = Entry(self, run, state, plain, self._batches_per_step(plain))
            self._lacks_training = False
            resume = resume_from_checkpoint if run.version == 0 else None
            return list(train(resume, **kwargs))

        self._lacks_training = True
        try:
            output = TrainOutput(*trainers_loop())
            if isinstance(self.lr_scheduler, PreparedPlateau):
                self.lr_scheduler.finish()
            return output
        finally:
            if self._entry is not None:
                self._entry.leave()
                self._entry = None

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        return self._outside_training(super().evaluate, *args, **kwargs)

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        return self._outside_training(super().predict, *args, **kwargs)

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        if self._lacks_training:
            raise KeepstepError(
                "Trainer.save_model: this process replaced one that died after training, so its model is not trained. "
                "Save in training (save_strategy, or on_train_end of a callback), or call trainer.evaluate() on all "
                "ranks first: it brings the weights here"
            )
        super().save_model(*args, **kwargs)

    def _outside_training(self, function: Callable[..., R], *args: Any, **kwargs: Any) -> R:
        """`function` on all ranks, which need a process group for it; again, if a fault interrupts it."""
        if self._entry is not None or session_or_none() is None:
            return function(*args, **kwargs)

        @keepstep.recoverable(rehearse=False)
        def outside_training(run: Run) -> Any:
            run.setup(lambda: keepstep.State(model=self.model))
            run._entries.init_process_group()
            run._form("Trainer.evaluate")
            self._lacks_training = False
            process_state.enter(run)
            found = function(*args, **kwargs)
            run._check_interrupted()
            return found

        return outside_training()

    def _build(self) -> keepstep.State:
        """What is protected; before this process has a rank."""
        plain = self._plain_loader()
        per_step = self._batches_per_step(plain)
        round_size = per_step or session_or_none().welcome.world  # type: ignore[union-attr]
        self.create_optimizer()
        if self.lr_scheduler is None or self._created_lr_scheduler:
            self.lr_scheduler = None
            rounds = -(-len(plain) // round_size)
            with self._without_accumulation():
                *_, max_steps = self.set_initial_training_values(self.args, _Sized(plain.dataset, rounds))
            self.create_scheduler(num_training_steps=max_steps)
        if isinstance(self.lr_scheduler, GreedyLR):
            raise KeepstepError(
                "recoverable: this version cannot recover GreedyLR; choose another lr_scheduler_type "
                "(reduce_lr_on_plateau follows a metric, too)"
            )
        self.accelerator.prepare_model(self.model, evaluation_mode=True)  # mixed precision and compilation, no wrapper
        return keepstep.State(
            model=self.model,
            optimizer=self.optimizer,
            schedule=self.lr_scheduler,
            progress=Progress(self),
            rank_values=RankValues(self),
        )

    def _plain_loader(self) -> DataLoader[Any]:
        """The DataLoader that the Trainer would share out among the ranks."""
        with _not_prepared(self.accelerator), self._without_accumulation():
            return super().get_train_dataloader()

    def _batches_per_step(self, plain: DataLoader[Any]) -> int | None:
        return None if self.global_batch is None else batches_of(self.global_batch, plain, "recoverable")

    @contextlib.contextmanager
    def _without_accumulation(self) -> Iterator[None]:
        """For what must not depend on the number of ranks, as accumulation does if there is a global batch."""
        before = self.args.gradient_accumulation_steps
        if self.global_batch is not None:
            self.args.gradient_accumulation_steps = 1
        try:
            yield
        finally:
            self.args.gradient_accumulation_steps = before

    # ---- the Trainer's loop ----

    @property
    def _replaying(self) -> bool:
        return self._entry is not None and self._entry.replaying

    def get_train_dataloader(self) -> Any:
        return super().get_train_dataloader() if self._entry is None else self._entry.loader

    def _init_training_state(
        self, max_steps: int, steps_per_epoch: int, epochs: int, resume_from_checkpoint: str | None, trial: Any
    ) -> tuple[int, int]:
        entry = self._entry
        if entry is not None and entry.resumed is not None:
            self.state.init_training_references(self, max_steps, epochs, trial)
            return entry.place()
        begins = super()._init_training_state(max_steps, steps_per_epoch, epochs, resume_from_checkpoint, trial)
        if entry is not None and any(begins):
            entry.loader._begin_at(*begins)
        return begins

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: str | None) -> Any:
        if self._entry is None:
            return super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)
        self.accelerator._models.append(self.model)  # prepared in `_build`
        if resume_from_checkpoint is not None:
            self._load_optimizer_and_scheduler(resume_from_checkpoint)
        for name in ("model", "optimizer", "lr_scheduler"):
            setattr(self.callback_handler, name, getattr(self, name))
        self.callback_handler.train_dataloader = train_dataloader
        return self.model_wrapped, train_dataloader

    def _run_epoch(self, *, epoch: int, epochs_trained: int, resume_from_checkpoint: str | None, **others: Any) -> None:
        entry = self._entry
        if entry is not None and entry.resumed is not None and epoch == epochs_trained:
            entry.progress.put_back_counters(entry.resumed)
            resume_from_checkpoint = _HERE
        super()._run_epoch(
            epoch=epoch, epochs_trained=epochs_trained, resume_from_checkpoint=resume_from_checkpoint, **others
        )

    def _evaluate(self, trial: Any, ignore_keys_for_eval: Any, skip_scheduler: bool = False) -> Any:
        if skip_scheduler and self._entry is not None and self._entry.resumed is not None:
            return {}  # `eval_on_start`: training began earlier
        return super()._evaluate(trial, ignore_keys_for_eval, skip_scheduler)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        if self._entry is not None:
            self._entry.check()
        return super()._save_checkpoint(*args, **kwargs)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Random numbers follow from the step."""
        if self._entry is None:
            super()._load_rng_state(checkpoint)

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device) -> Any:
        if self._replaying:
            return [None] * num_batches, None
        return super().get_batch_samples(epoch_iterator, num_batches, device)

    def training_step(self, model: torch.nn.Module, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        if self._replaying:
            return torch.zeros((), device=self.args.device)
        if self._entry is not None:
            self._entry.step.seed()
        loss = super().training_step(model, inputs, num_items_in_batch)
        if self._entry is None:
            return loss
        self._entry.step.losses.append(loss)
        return torch.zeros_like(loss)  # the commit adds the mean of all ranks

    def floating_point_ops(self, inputs: Any) -> int:
        return 0 if self._replaying else super().floating_point_ops(inputs)

    def _track_num_input_tokens(self, inputs: Any) -> None:
        if not self._replaying:
            super()._track_num_input_tokens(inputs)

    def _clip_grad_norm(self, model: torch.nn.Module) -> Any:
        return None if self._replaying else super()._clip_grad_norm(model)

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> Any:
        if self._entry is None:
            return super()._get_grad_norm(model, grad_norm=grad_norm)
        progress = self._entry.progress
        if not self._replaying:
            found = super()._get_grad_norm(model, grad_norm=grad_norm)
            progress.grad_norm = None if found is None else float(found)
        return progress.grad_norm

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        super().log(logs, *args, **kwargs)
        if self._entry is not None:
            self._entry.log(logs)


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
        "ignore_data_skip=True": args.ignore_data_skip,
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
