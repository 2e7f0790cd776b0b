"""The order of a DataLoader's batches over all ranks: the same in every process, and again after a fault.

Batches are counted over the whole job: batch q is number ``q % n`` of epoch ``q // n``, where an epoch has n batches.
What a sampler draws in an epoch follows from the job's seed and the epoch alone.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from keepstep import _engine
from keepstep._errors import KeepstepError
from keepstep._session import Session
from keepstep.torch import seeds
from keepstep.torch.data import loader_process
from keepstep.torch.prepared.known_epoch import KnownEpoch, known_epoch

CHUNK_SAMPLES = 10_000  # drawn from the sampler at once
_ORDER = 0x6F72646572  # of random numbers: not those of a step


def global_sampler(loader: DataLoader[Any]) -> Any:
    """What yields the batches of `loader` for all ranks together; of a loader without batches, its samples.

    A `DistributedSampler` is replaced by one that yields all samples, in the same order.

    Raises:
        KeepstepError: another sampler yields one rank's share.
    """
    batches = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    sampler = getattr(batches, "sampler", None)
    if type(sampler) is DistributedSampler and type(batches) is BatchSampler:
        whole: Any = DistributedSampler(
            sampler.dataset, 1, 0, shuffle=sampler.shuffle, seed=sampler.seed, drop_last=sampler.drop_last
        )
        return BatchSampler(whole, batches.batch_size, batches.drop_last)
    for each in loader_process.samplers_of(loader):
        replicas = getattr(each, "num_replicas", 1)
        if isinstance(replicas, int) and replicas > 1:
            raise KeepstepError(
                f"run.prepare: the loader has a {type(each).__qualname__} with num_replicas={replicas}, which yields "
                "one rank's share. Give it num_replicas=1, rank=0: the loader that run.prepare returns hands out the "
                "batches to the ranks"
            )
    return batches


class BatchOrder:
    """What the dataset is asked for, batch after batch. Batches are asked for in rising order.

    Attributes:
        length: batches of an epoch.
    """

    def __init__(self, loader: DataLoader[Any], session: Session) -> None:
        self._sampler = global_sampler(loader)
        self._session = session
        try:
            self.length = len(self._sampler)
        except TypeError:
            raise KeepstepError(
                f"run.prepare: the loader's {type(self._sampler).__qualname__} has no length, so nobody knows where an "
                "epoch ends; give it a __len__, or write keepstep.data.cached(DataLoader(...))"
            ) from None
        if self.length == 0:
            raise KeepstepError("run.prepare: the loader has no batch")
        self._epoch = -1
        self._known: KnownEpoch | None = None  # the epoch, if any batch of it is known at once; else
        self._drawn: Iterator[Any] = iter(())  # the rest of it
        self._next = 0  # the index in its epoch of what comes next of that

    def __getitem__(self, number: int) -> Any:
        """Batch `number`: a list of what the dataset is asked for."""
        epoch, index = divmod(number, self.length)
        if epoch != self._epoch or (index < self._next and self._known is None):
            self._begin(epoch)
        if self._known is not None:
            return self._known[index]
        batch = next(itertools.islice(self._drawn, index - self._next, None))
        self._next = index + 1
        return batch

    def _begin(self, epoch: int) -> None:
        """The sampler has random numbers of its own, which follow from the job's seed and the epoch."""
        seed = _engine.mix_seed(self._session.welcome.seed, _ORDER, epoch)
        for part in self._parts():
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)
            if getattr(part, "generator", None) is not None:
                part.generator.manual_seed(seed & ((1 << 63) - 1))
        outside = seeds.generator_states()
        seeds.seed_all(seed)
        self._epoch, self._next = epoch, 0
        self._known = known_epoch(self._sampler)
        if self._known is not None:
            seeds.set_generator_states(outside)
            self._require_same(epoch, self._known.samples(CHUNK_SAMPLES))
        else:
            self._drawn = self._draw(epoch, iter(self._sampler), outside)

    def _draw(self, epoch: int, source: Iterator[Any], outside: Any) -> Iterator[Any]:
        """The batches of `epoch`. The sampler is asked for many at once. `outside`: the random numbers of the loop."""
        count = 0
        while True:
            chunk: list[Any] = []
            samples = 0
            while samples < CHUNK_SAMPLES and (batch := next(source, None)) is not None:
                chunk.append(batch)
                samples += len(batch) if hasattr(batch, "__len__") else 1
            own = seeds.generator_states()
            seeds.set_generator_states(outside)
            if count == 0:
                self._require_same(epoch, chunk)
            count += len(chunk)
            if count > self.length or (samples < CHUNK_SAMPLES and count < self.length):
                raise KeepstepError(
                    f"run.prepare: the loader's {type(self._sampler).__qualname__} has the length {self.length}, and "
                    f"yields {'more' if count > self.length else count} batches in epoch {epoch}; all epochs need one "
                    "length"
                )
            yield from chunk
            outside = seeds.generator_states()
            seeds.set_generator_states(own)

    def _parts(self) -> Iterator[Any]:
        part = self._sampler
        while part is not None:
            yield part
            part = getattr(part, "sampler", None) or getattr(part, "batch_sampler", None)

    def _require_same(self, epoch: int, first: list[Any]) -> None:
        """All ranks, and all entries, see an epoch in one order. `first`: what it begins with."""
        mine = str(zlib.crc32(repr(first).encode())).encode()
        answered, _, _, known = self._session.store(
            "compare_set", self._session.key(f"order/{epoch}"), b"0:" + mine, ends_with_generation=False
        )
        if answered and known and known != mine:
            raise KeepstepError(
                f"run.prepare: epoch {epoch} has another order here than on another rank, or before a fault. What the "
                f"loader's {type(self._sampler).__qualname__} yields must follow from the epoch and from torch's, "
                "random's or numpy's random numbers, which are seeded for it; give it a set_epoch(epoch) if it needs "
                "the number"
            )
