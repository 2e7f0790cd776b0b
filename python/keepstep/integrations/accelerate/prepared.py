"""What `Accelerator.prepare` returns under keepstep."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from accelerate.scheduler import AcceleratedScheduler
from accelerate.utils.operations import send_to_device
from torch.utils.data import DataLoader

from keepstep import KeepstepError
from keepstep.torch.prepared.batch_source import source_of
from keepstep.torch.prepared.fixed_batch import batches_per_epoch, require_fitting_world
from keepstep.torch.prepared.prepared_loader import PreparedLoader

if TYPE_CHECKING:
    from keepstep.integrations.accelerate.accelerator import Accelerator
    from keepstep.torch.runtime.run import Run


class _Loader:
    """Stands for a DataLoader that each entry shares out anew.

    Attributes:
        plain: the user's.
        end_of_dataloader: Accelerate's: the newest batch is the last one.
        remainder: Accelerate's: samples that the last batch has too many.
    """

    _is_accelerate_prepared = True

    def __init__(self, plain: DataLoader[Any], accelerator: Accelerator) -> None:
        self.plain = plain
        self.end_of_dataloader = False
        self.remainder = -1
        self._accelerator = accelerator

    def __getattr__(self, name: str) -> Any:
        if name == "plain":
            raise AttributeError(name)
        return getattr(self.plain, name)


class TrainingLoader(_Loader):
    """The training data: a `PreparedLoader` of the entry that is under way."""

    _now: PreparedLoader | None = None

    def __init__(self, plain: DataLoader[Any], accelerator: Accelerator, per_step: int | None) -> None:
        """`per_step`: batches of a step over all ranks; None: as many as the script accumulates."""
        super().__init__(plain, accelerator)
        self._per_step = per_step

    def enter(self, run: Run) -> PreparedLoader:
        require_fitting_world(run, self._per_step, "Accelerator", None)
        self._now = PreparedLoader(run, source_of(self.plain, run._session), None, self._per_step)
        return self._now

    @property
    def prepared(self) -> PreparedLoader:
        if self._now is None:
            raise KeepstepError(
                "Accelerator: the training data is used outside of the training function; write "
                "@accelerator.recoverable above the function that contains the loop, and call it"
            )
        return self._now

    def __len__(self) -> int:
        """This rank's batches of an epoch."""
        if self._now is not None:
            return self._now.batches_per_epoch
        return batches_per_epoch(len(self.plain), self._per_step, int(self._accelerator.num_processes))

    def log(self, **values: Any) -> None:
        """See `PreparedLoader.log`."""
        self.prepared.log(**values)

    def set_epoch(self, epoch: int) -> None:
        if self._now is not None:
            self._now.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        gradients = self._accelerator.gradient_state
        prepared = self.prepared
        batches = iter(prepared)
        coming = len(prepared)
        self.end_of_dataloader = False
        gradients._add_dataloader(self)
        try:
            with contextlib.closing(batches):  # type: ignore[type-var]
                for batch in batches:
                    coming -= 1
                    self.end_of_dataloader = coming == 0
                    yield send_to_device(batch, self._accelerator.device)
        finally:
            if prepared is self._now:  # a fault may keep an old entry's loop until a new one has begun
                gradients._remove_dataloader(self)


class EvaluationLoader(_Loader):
    """Accelerate's own loader, for the rank that this process has when it is iterated."""

    def __init__(self, plain: DataLoader[Any], share: Callable[[], Any], accelerator: Accelerator) -> None:
        super().__init__(plain, accelerator)
        self._share = share

    def __iter__(self) -> Iterator[Any]:
        shared = self._share()
        self._accelerator._dataloaders.remove(shared)
        return iter(shared)

    def __len__(self) -> int:
        return -(-len(self.plain) // int(self._accelerator.num_processes))


class TrainingScheduler(AcceleratedScheduler):
    """Moves in the commit, as often as Accelerate would move it: once for each rank."""

    def move(self) -> None:
        """Part of the commit."""
        super().step()

    def step(self, *args: Any, **kwargs: Any) -> None:
        """The loop's call: it is done already."""
