"""What data sets over mapped corpora share: whole batches, made with one copy from the file's pages to the tensor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

from keepstep._errors import KeepstepError


class MappedSamples(ABC):
    """Map-style, of samples of one shape: a tensor, or a dict of tensors. Can be pickled: the files are opened again.

    Attributes:
        prefix: path of the corpus without .bin.
        sequence_length: tokens of a sample, less one.
        layout: name, shape and type of each tensor of a sample; the only name "" stands for a sample that is a tensor.
    """

    prefix: str
    sequence_length: int
    layout: tuple[tuple[str, tuple[int, ...], torch.dtype], ...]
    _arguments: dict[str, Any]  # that it was made with, after prefix and sequence_length

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _fill(self, tensors: dict[str, torch.Tensor], samples: Sequence[int], rows: Sequence[int] | None) -> None:
        """Sample i into row i of each tensor, or rows[i]. IndexError: no such sample; RuntimeError: files are lost."""

    @abstractmethod
    def _announce(self, samples: Sequence[int]) -> None:
        """What `will_need` does. IndexError: no such sample; RuntimeError: files are lost."""

    def __reduce__(self) -> Any:
        return _open, (type(self), self.prefix, self.sequence_length, self._arguments)

    def will_need(self, samples: Sequence[int]) -> None:
        """Has a thread of this process read them from disk, if they are not in memory; returns at once.

        Raises KeepstepError if the corpus was truncated or changed under us.
        """
        try:
            self._announce(samples)
        except RuntimeError as error:
            raise KeepstepError(f"{type(self).__name__}: {error}") from None

    def new_batch(self, count: int) -> dict[str, torch.Tensor]:
        """Tensors for `count` samples, not filled."""
        return {name: torch.empty((count, *shape), dtype=dtype) for name, shape, dtype in self.layout}

    def fill_batch(
        self, tensors: dict[str, torch.Tensor], samples: Sequence[int], rows: Sequence[int] | None = None
    ) -> None:
        """These samples into the first rows of a `new_batch`, or into `rows`.

        Raises KeepstepError if the corpus was truncated or changed under us.
        """
        try:
            self._fill(tensors, samples, rows)
        except RuntimeError as error:
            raise KeepstepError(f"{type(self).__name__}: {error}") from None

    def as_sample(self, tensors: dict[str, torch.Tensor]) -> Any:
        """The tensor itself where a sample is one."""
        return tensors[""] if "" in tensors else tensors

    def make_batch(self, samples: Sequence[int]) -> Any:
        """These samples as the rows of new tensors."""
        tensors = self.new_batch(len(samples))
        self.fill_batch(tensors, samples)
        return self.as_sample(tensors)

    def __getitem__(self, sample: int) -> Any:
        tensors = self.new_batch(1)
        self.fill_batch(tensors, [sample])
        return self.as_sample({name: rows[0] for name, rows in tensors.items()})


def _open(kind: type[Any], prefix: str, sequence_length: int, arguments: dict[str, Any]) -> Any:
    return kind(prefix, sequence_length, **arguments)
