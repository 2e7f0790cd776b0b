"""What ``fabric.setup_dataloaders`` makes of the training data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from lightning.fabric.utilities.data import _update_dataloader
from lightning.fabric.utilities.distributed import DistributedSamplerWrapper
from torch.utils.data import DataLoader

from keepstep import KeepstepError, _engine
from keepstep.torch import seeds
from keepstep.torch.prepared.batch_source import source_of
from keepstep.torch.prepared.fixed_batch import batches_of, batches_per_epoch
from keepstep.torch.prepared.prepared_loader import LoaderStep, PreparedLoader, SummedLossStep

if TYPE_CHECKING:
    from keepstep.integrations.lightning.fabric.logs import Logs
    from keepstep.integrations.lightning.fabric.strategy import KeepstepFabricStrategy
    from keepstep.torch.runtime.run import Run

_END = 0x656E64  # of random numbers: not those of a batch


class EntryLoader(PreparedLoader):
    """A `PreparedLoader` that tells `logs` where the loop is."""

    def __init__(self, run: Run, source: Any, per_step: int | None, logs: Logs) -> None:
        super().__init__(run, source, None, per_step)
        self._logs = logs
        run._evaluations.step = run.version  # what is logged before the next step belongs to the last one

    def _new_step(self, number: int) -> LoaderStep:
        self._run._evaluations.step = 0
        return SummedLossStep(self, number)

    def _batches(self, epoch: int, iteration: int) -> Iterator[Any]:
        self._logs.loop_begins()
        yield from super()._batches(epoch, iteration)
        self._end_begins(epoch)

    def _leave(self, epoch: int, end: int) -> None:
        super()._leave(epoch, end)
        if self._counted is not None:  # by `break`
            self._end_begins(epoch)

    def _end_begins(self, epoch: int) -> None:
        """What follows an epoch's batches draws the same random numbers each time it is done."""
        run = self._run
        seeds.seed_all(_engine.mix_seed(run.seed ^ _END, run.version, run.rank))
        if not run._in_step:
            run._evaluations.step = run.version
        self._logs.end_begins(epoch)

    def _commit(self, update: tuple[Callable[[], Any], ...], communicates: bool, veto: Any) -> None:
        self._logs.take()
        super()._commit(update, communicates, veto)
        self._logs.committed()


class TrainingLoader:
    """The user's loader, whose batches each entry shares out anew.

    Its state is its position, so ``fabric.save`` and ``fabric.load`` know where training goes on.

    Attributes:
        plain: the user's.
    """

    def __init__(self, plain: DataLoader[Any], strategy: KeepstepFabricStrategy) -> None:
        sampler = getattr(plain, "sampler", None)
        if isinstance(sampler, DistributedSamplerWrapper):  # one rank's share of what a sampler of the user's yields
            plain = _update_dataloader(plain, sampler.dataset._sampler)  # type: ignore[attr-defined]
        self.plain = plain
        self._strategy = strategy
        self._now: EntryLoader | None = None
        self._begun = {"batches": 0, "steps": 0}  # by a checkpoint that was loaded

    def enter(self, run: Run, logs: Logs) -> EntryLoader:
        if run.version == 0:
            run._committed.position = self._begun["batches"]
        self._now = EntryLoader(run, source_of(self.plain, run._session), self.per_step, logs)
        return self._now

    @property
    def per_step(self) -> int | None:
        """Batches of a step over all ranks, if that is given."""
        global_batch = self._strategy.global_batch
        return None if global_batch is None else batches_of(global_batch, self.plain, "KeepstepFabricStrategy")

    @property
    def prepared(self) -> EntryLoader:
        if self._now is None or self._strategy.run is None:
            raise KeepstepError(
                "Fabric: the training data is used outside of the training function; move the loop into a function, "
                "and call it by fabric.launch(train), after fabric.setup and fabric.setup_dataloaders"
            )
        return self._now

    @property
    def step(self) -> int:
        """The step that the newest batch belongs to, from 1, counted from the first start of the training."""
        return self._begun["steps"] + self.prepared.step

    def state_dict(self) -> dict[str, int]:
        """All ranks' batches and steps that are committed."""
        if self._strategy.run is None:
            return dict(self._begun)
        run = self._strategy.run
        return {"batches": run._committed.position, "steps": self._begun["steps"] + run.version}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Training begins there."""
        if self._strategy.run is not None:
            raise KeepstepError("fabric.load in the training function: load in front of fabric.launch(train)")
        self._begun = {name: int(state[name]) for name in self._begun}

    def __iter__(self) -> Iterator[Any]:
        return iter(self.prepared)

    def __len__(self) -> int:
        """This rank's batches of an epoch."""
        if self._now is not None:
            return self._now.batches_per_epoch
        return batches_per_epoch(len(self.plain), self.per_step, self._strategy.world_size)
