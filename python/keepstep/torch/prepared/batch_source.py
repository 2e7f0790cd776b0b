"""Where the batches of a prepared loader come from: a DataLoader like the user's, or a ring that a node shares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from torch.utils.data import DataLoader, Dataset, IterableDataset

from keepstep import _engine
from keepstep._errors import KeepstepError
from keepstep._session import Session
from keepstep.torch import seeds
from keepstep.torch.prepared.batch_order import BatchOrder

if TYPE_CHECKING:
    from keepstep.torch.data.cached import CachedLoader

_DATA = 0x64617461  # of random numbers: not those of a step
_ENDLESS = 1 << 62
# Of a DataLoader: what it was made with, besides what chooses the samples.
_OPTIONS = (
    "num_workers", "collate_fn", "pin_memory", "pin_memory_device", "timeout", "worker_init_fn", "generator",
    "multiprocessing_context", "prefetch_factor", "persistent_workers", "in_order",
)  # fmt: skip


class BatchSource(Protocol):
    """Batches by their number over the whole job.

    Attributes:
        length: batches of an epoch.
    """

    length: int

    def batches(self, rounds: Iterable[tuple[int, int]], size: int) -> Iterator[Any]:
        """This rank's batches. `rounds`: the first batch of each round, which has `size` batches, and this rank's."""

    def samples(self, number: int) -> list[int]:
        """What batch `number` consists of, as far as that has numbers; else the batch's own number."""


def source_of(loader: DataLoader[Any] | CachedLoader, session: Session) -> BatchSource:
    """Raises KeepstepError for a loader whose position cannot be a number."""
    from keepstep.torch.data.cached import CachedLoader

    if isinstance(loader, CachedLoader):
        return CachedSource(loader)
    if not isinstance(loader, DataLoader):
        raise KeepstepError(
            f"run.prepare: the loader is a {type(loader).__qualname__}; a torch.utils.data.DataLoader is needed. For "
            "anything else that can be iterated write keepstep.data.cached(loader)"
        )
    if isinstance(loader.dataset, IterableDataset):
        raise KeepstepError(
            f"run.prepare: the loader's {type(loader.dataset).__qualname__} is an IterableDataset, whose samples have "
            "no numbers: write keepstep.data.cached(DataLoader(...)), which keeps its position"
        )
    if type(loader).__iter__ is not DataLoader.__iter__ and not hasattr(loader, "load_state_dict"):
        raise KeepstepError(
            f"run.prepare: {type(loader).__qualname__} iterates in a way of its own; write "
            "keepstep.data.cached(loader), which takes its batches as they come"
        )
    return LoaderSource(loader, session)


class _Numbered(Dataset[Any]):
    """A dataset that is asked for numbered batches, each of which draws random numbers of its own: which process makes
    it, and what that made before, changes nothing."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self.dataset = dataset
        self._seed = seed

    def __getitems__(self, asked: tuple[int, Any]) -> Any:
        number, samples = asked
        seeds.seed_all(_engine.mix_seed(self._seed, _DATA, number))
        if callable(many := getattr(self.dataset, "__getitems__", None)):
            return many(samples)
        return [self.dataset[each] for each in samples]

    def __getitem__(self, asked: tuple[int, Any]) -> Any:
        """Of a loader without batches, whose samples are the batches."""
        number, sample = asked
        seeds.seed_all(_engine.mix_seed(self._seed, _DATA, number))
        return self.dataset[sample]

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        """What a worker_init_fn asks the dataset for."""
        if name.startswith("__") or name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)


class _Asked:
    """What the DataLoader iterates instead of a sampler; may run ahead of the loop by its workers' prefetching."""

    def __init__(self, order: BatchOrder) -> None:
        self._order = order
        self.numbers: Iterable[int] = ()

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        return ((number, self._order[number]) for number in self.numbers)


class LoaderSource:
    """Batches of a map-style dataset, made by a DataLoader with the options of the user's."""

    def __init__(self, loader: DataLoader[Any], session: Session) -> None:
        self._order = BatchOrder(loader, session)
        self._samples = BatchOrder(loader, session) if session.witness is not None else None
        self.length = self._order.length
        self._asked = _Asked(self._order)
        options = {name: getattr(loader, name) for name in _OPTIONS if getattr(loader, name, None) is not None}
        if not options.get("pin_memory_device"):
            options.pop("pin_memory_device", None)
        if loader.batch_sampler is not None:
            options["batch_sampler"] = self._asked
        else:
            options |= {"batch_size": None, "sampler": self._asked}
        self._loader: DataLoader[Any] = DataLoader(_Numbered(loader.dataset, session.welcome.seed), **options)

    def batches(self, rounds: Iterable[tuple[int, int]], size: int) -> Iterator[Any]:
        self._asked.numbers = (mine for _, mine in rounds)
        return iter(self._loader)

    def samples(self, number: int) -> list[int]:
        if self._samples is None:
            return [number]
        batch = self._samples[number]
        found = batch if isinstance(batch, list) else [batch]
        return found if all(isinstance(each, int) for each in found) else [number]


class CachedSource:
    """Batches of `keepstep.data.cached`, which seeds and keeps the position of whatever makes them."""

    def __init__(self, loader: CachedLoader) -> None:
        self._loader = loader
        try:
            self.length = len(loader.loader)  # type: ignore[arg-type]
        except TypeError:
            self.length = _ENDLESS  # one epoch

    def batches(self, rounds: Iterable[tuple[int, int]], size: int) -> Iterator[Any]:
        for first, mine in rounds:
            self._loader.enter_round(first, size)
            yield self._loader.batch_at(mine)

    def samples(self, number: int) -> list[int]:
        return [number]
