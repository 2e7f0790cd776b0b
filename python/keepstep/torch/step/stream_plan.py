"""Which batches of a cached loader a step uses: `BatchPlan` for data with an order of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from keepstep._errors import KeepstepError
from keepstep.torch.data.map_dataset import MapDataset
from keepstep.torch.step.batch_plan import BatchPlan

if TYPE_CHECKING:
    from keepstep.torch.data.cached import CachedLoader


class StreamPlan(BatchPlan):
    """A step's micro-batches are the loader's next ``global_batch // micro_batch`` batches, whatever their sizes.

    Samples are counted as if each batch had `micro_batch` of them, so a number identifies its batch at every world
    size.
    """

    def __init__(
        self,
        loader: CachedLoader,
        global_batch: int,
        micro_batch: int,
        collate: Callable[[list[Any]], Any] | None,
        seed: int,
        rank: int,
        world_size: int,
    ) -> None:
        if collate is not None:
            raise KeepstepError("run.steps: a cached loader's batches are made already; collate= belongs to the loader")
        size = getattr(loader.loader, "batch_size", None)
        if isinstance(size, int) and size != micro_batch:
            raise KeepstepError(
                f"run.steps: micro_batch={micro_batch}, and the cached loader has batch_size={size}: each of its "
                "batches is one micro-batch"
            )
        super().__init__(_Stream(loader), global_batch, micro_batch, False, None, seed, rank, world_size)
        self._loader = loader

    def shortened(self, most: int) -> BatchPlan:
        from keepstep.torch.recovery import rehearsal

        raise rehearsal.NotWorthIt  # a ring's batches belong to ranks: a spare must not block the loader

    def samples(self, step: int) -> list[int]:
        """The numbers of this rank's samples; moves the ring on to `step`."""
        self._loader.enter_round((step - 1) * self.micro_batches, self.micro_batches)
        begin = (step - 1) * self.global_batch + self.micros.start * self.micro_batch
        return list(range(begin, begin + len(self.micros) * self.micro_batch))

    def batch(self, samples: list[int]) -> Any:
        return self._loader.batch_at(samples[0] // self.micro_batch)


class _Stream:
    """An endless data set, as far as `BatchPlan` checks it."""

    def __init__(self, loader: CachedLoader) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return 1 << 62

    def __getitem__(self, index: int, /) -> Any:
        raise KeepstepError("run.steps: a cached loader has batches, not samples")

    def make_batch(self, samples: list[int]) -> Any:
        return self[samples[0]]


def plan_for(
    dataset: MapDataset | CachedLoader,
    global_batch: int,
    micro_batch: int,
    shuffle: bool,
    collate: Callable[[list[Any]], Any] | None,
    seed: int,
    rank: int,
    world_size: int,
    origin: tuple[int, int] | None = None,
) -> BatchPlan:
    """The plan of one rank in one generation."""
    from keepstep.torch.data.cached import CachedLoader

    if isinstance(dataset, CachedLoader):
        if origin is not None:
            raise KeepstepError(
                "run.steps: a cached loader hands out its batches by the number of the step, so position= and a "
                "global_batch that changes do not go with it"
            )
        return StreamPlan(dataset, global_batch, micro_batch, collate, seed, rank, world_size)
    return BatchPlan(dataset, global_batch, micro_batch, shuffle, collate, seed, rank, world_size, origin or (1, 0))
