"""`TokenDataset`: samples of fixed length out of a corpus of tokens that is mapped, not loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from keepstep import _engine
from keepstep._errors import KeepstepError
from keepstep.torch.data.mapped_samples import MappedSamples

DEFAULT_SPLITS = {"train": 0.98, "valid": 0.01, "test": 0.01}


_OWN_TYPES = {
    "uint8": torch.uint8,
    "int8": torch.int8,
    "int16": torch.int16,
    "uint16": torch.uint16,
    "int32": torch.int32,
    "int64": torch.int64,
}


class TokenDataset(MappedSamples):
    """The tokens of ``PREFIX.bin``, cut into samples of `sequence_length` + 1.

    Neighbouring samples share one token: the last of one is the first of the next, so that inputs
    (``sample[:-1]``) and targets (``sample[1:]``) cover every token once. Sample i begins at token i * sequence_length:
    nothing is stored about samples, and none costs more than another. Documents follow one another in the order of the
    index; a sample may hold several. The files are those of Megatron; all processes of a node share one copy.

    Map-style: for `run.steps`, and for torch's DataLoader. `run.steps` takes whole batches (`make_batch`): one copy,
    from the file's pages to the tensor. Can be pickled: the files are opened again.

    Attributes:
        prefix: path of the corpus without .bin.
        sequence_length: as given.
        tokens: in this split.
        documents: in this split.
        dtype: of tokens in samples.
    """

    def __init__(
        self,
        prefix: str,
        sequence_length: int,
        *,
        split: str | None = None,
        splits: Mapping[str, float] = DEFAULT_SPLITS,
        document_ids: bool = False,
        dtype: torch.dtype | None = torch.int64,
    ) -> None:
        """Opens and checks both files; reads the index, not the tokens.

        Args:
            split: which part; None: all of it.
            splits: parts and their shares of the documents, in order; they are made to add up to 1. A document is in
                one part only.
            document_ids: samples are dicts of ``tokens``, ``document_ids`` (0 for the document that the sample begins
                in, 1 for the next) and ``position_ids`` (from 0 in each document), for masks that keep documents apart.
            dtype: of tokens: int64, or None for that of the file, which copies fewer bytes (to a GPU, too).
        """
        if sequence_length < 1:
            raise KeepstepError(f"TokenDataset: sequence_length={sequence_length}; a sample has at least one token")
        self._arguments = {
            "split": split,
            "splits": dict(splits),
            "document_ids": document_ids,
            "dtype": dtype,
        }
        try:
            self._corpus = _engine.TokenCorpus(prefix)
        except RuntimeError as error:
            raise KeepstepError(f"TokenDataset: {error}") from None
        self.prefix = self._corpus.prefix
        self.sequence_length = sequence_length
        own = _OWN_TYPES[self._corpus.type]
        if dtype not in (None, torch.int64, own):
            raise KeepstepError(
                f"TokenDataset: dtype={dtype}; int64 can be, or that of '{self.prefix}', {own} (dtype=None)"
            )
        self.dtype = own if dtype is None else dtype
        self._widen = dtype == torch.int64
        self._document_ids = document_ids
        shape = (sequence_length + 1,)
        if document_ids:
            ids = ("document_ids", shape, torch.int64), ("position_ids", shape, torch.int64)
            self.layout = ("tokens", shape, self.dtype), *ids
        else:
            self.layout = (("", shape, self.dtype),)
        first, end = documents_of(split, splits, self._corpus.documents)
        self.documents = end - first
        self._begin = self._corpus.document_start(first)
        self.tokens = self._corpus.document_start(end) - self._begin
        self._length = max(0, (self.tokens - 1) // sequence_length)
        if self._length == 0:
            part = "" if split is None else f" in split '{split}'"
            raise KeepstepError(
                f"TokenDataset: '{self.prefix}' has {self.tokens} tokens{part}; one sample of sequence_length="
                f"{sequence_length} needs {sequence_length + 1}"
            )

    def __len__(self) -> int:
        return self._length

    def _fill(self, tensors: dict[str, torch.Tensor], samples: Sequence[int], rows: Sequence[int] | None) -> None:
        begin, length, count = self._begin, self.sequence_length, self._length
        tokens = tensors.get("")
        if tokens is not None:
            self._corpus.read(samples, length + 1, tokens.data_ptr(), begin, length, count, rows, self._widen)
            return
        self._corpus.read(samples, length + 1, tensors["tokens"].data_ptr(), begin, length, count, rows, self._widen)
        ids, positions = tensors["document_ids"].data_ptr(), tensors["position_ids"].data_ptr()
        self._corpus.describe(samples, length + 1, ids, positions, begin, length, count, rows)

    def make_batch(self, samples: Sequence[int]) -> Any:
        if self._document_ids:
            return super().make_batch(samples)
        # The same, with less around the copy: a small batch takes a few microseconds.
        width = self.sequence_length + 1
        batch = torch.empty((len(samples), width), dtype=self.dtype)
        try:
            self._corpus.read(samples, width, batch.data_ptr(), self._begin, width - 1, self._length, None, self._widen)
        except RuntimeError as error:
            raise KeepstepError(f"TokenDataset: {error}") from None
        return batch

    def _announce(self, samples: Sequence[int]) -> None:
        self._corpus.will_need(samples, self.sequence_length + 1, self._begin, self.sequence_length, self._length)


def documents_of(split: str | None, splits: Mapping[str, float], documents: int) -> tuple[int, int]:
    """[first, end) of a split's documents. Raises KeepstepError for splits that are none."""
    if split is None:
        return 0, documents
    if split not in splits:
        raise KeepstepError(f"there is no split '{split}'; there are {', '.join(splits)}")
    total = sum(splits.values())
    if any(not share >= 0 for share in splits.values()) or not 0 < total < float("inf"):
        raise KeepstepError(f"splits are shares of the documents, not {dict(splits)}")
    before = 0.0
    for name, share in splits.items():
        if name == split:
            break
        before += share
    return round(documents * before / total), round(documents * min(1.0, (before + splits[split]) / total))
