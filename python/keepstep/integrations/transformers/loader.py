"""The Trainer's loader, steps and optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from keepstep.torch.prepared.batch_source import BatchSource
from keepstep.torch.prepared.committing import PreparedOptimizer, Updates
from keepstep.torch.prepared.prepared_loader import LoaderStep, PreparedLoader, SummedLossStep

if TYPE_CHECKING:
    from keepstep.integrations.transformers.entry import Entry
    from keepstep.torch.runtime.run import Run


class TrainerStep(SummedLossStep):
    """A step of the Trainer's.

    Attributes:
        begin: its first batch, over all ranks.
    """

    def __init__(self, loader: TrainerLoader, number: int) -> None:
        super().__init__(loader, number)
        self._entry = loader.entry
        self.begin = loader._taken

    def seed(self) -> None:
        """Seeds the random numbers of the next batch: the Trainer has fetched all of the step's before."""
        self._loader._seed(self.numbers[len(self.losses)])

    def _move_position(self) -> None:
        super()._move_position()
        self._entry.committing(self.run._engine.mean_loss(self.number), self.begin)


class TrainerLoader(PreparedLoader):
    """A `PreparedLoader` whose length is always that of a whole epoch, as the Trainer's arithmetic wants it.

    Attributes:
        dataset: the Trainer's.
        entry: that it belongs to.
    """

    def __init__(self, run: Run, source: BatchSource, entry: Entry, dataset: Any, per_step: int | None) -> None:
        super().__init__(run, source, None, per_step)
        self.entry = entry
        self.dataset = dataset

    def __len__(self) -> int:
        return self.batches_per_epoch

    def _new_step(self, number: int) -> LoaderStep:
        self.entry.step_begins()
        return TrainerStep(self, number)


class TrainerOptimizer(PreparedOptimizer):
    """A `PreparedOptimizer` that does nothing while the Trainer repeats the end of a step that is committed."""

    def __init__(self, optimizer: Optimizer, updates: Updates, entry: Entry) -> None:
        super().__init__(optimizer, updates)
        self.__dict__["_entry"] = entry

    def step(self, closure: Any = None) -> Any:
        if self._entry.replaying:
            self._entry.replaying = False
            return None
        self._entry.voting()
        return super().step(closure)
