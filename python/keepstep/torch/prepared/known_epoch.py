"""An epoch of torch's own samplers, of which any batch is known at once.

To get to a batch by iterating over the sampler takes microseconds for each batch before it, and RandomSampler makes a
list of all samples first. In the middle of a large epoch that is longer than the rest of a recovery.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler


@dataclass
class KnownEpoch:
    """`numbers`: of all samples, in the order of the epoch. `batch_size`: None if each sample is a batch."""

    numbers: torch.Tensor | range
    batch_size: int | None

    def __getitem__(self, index: int) -> Any:
        """What the sampler yields as number `index`."""
        size = self.batch_size or 1
        batch = _numbers(self.numbers[index * size : (index + 1) * size])
        return batch if self.batch_size else batch[0]

    def samples(self, count: int) -> list[int]:
        """The first ones."""
        return _numbers(self.numbers[:count])


def _numbers(part: torch.Tensor | range) -> list[int]:
    return part.tolist() if isinstance(part, torch.Tensor) else list(part)


def known_epoch(sampler: Any) -> KnownEpoch | None:
    """What ``iter(sampler)`` would yield now, with the same random numbers drawn; None for other samplers."""
    batch_size = None
    if type(sampler) is BatchSampler:
        batch_size, sampler = sampler.batch_size, sampler.sampler
    numbers = _order_of(sampler)
    return None if numbers is None else KnownEpoch(numbers, batch_size)


def _order_of(sampler: Any) -> torch.Tensor | range | None:
    if type(sampler) is SequentialSampler:
        return range(len(sampler.data_source))
    if type(sampler) is RandomSampler:
        length = len(sampler.data_source)
        if sampler.replacement or sampler.num_samples != length:
            return None
        generator = sampler.generator
        if generator is None:
            generator = torch.Generator().manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
        return torch.randperm(length, generator=generator)
    if type(sampler) is DistributedSampler and sampler.num_replicas == 1:
        length = len(sampler.dataset)  # type: ignore[arg-type]
        if not sampler.shuffle:
            return range(length)
        return torch.randperm(length, generator=torch.Generator().manual_seed(sampler.seed + sampler.epoch))
    return None
