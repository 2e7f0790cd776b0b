"""`PreferencePairs`: a chosen and a rejected answer to the same question, for DPO and the like."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from keepstep import _engine
from keepstep._errors import KeepstepError
from keepstep.torch.data.mapped_samples import MappedSamples


class PreferencePairs(MappedSamples):
    """What ``write_chat(..., pairs=True)`` wrote: documents 2i and 2i + 1 are the answers of pair i, chosen first.

    A sample is a dict of two tensors of [2, `sequence_length` + 1]: ``tokens`` (int64), each row an answer with its
    question, then padding; and ``loss_mask`` (bool), True for the tokens of the answer. So ``[:, :-1]`` are inputs and
    ``[:, 1:]`` targets. Can be pickled: the files are opened again.

    Attributes:
        prefix: path of the corpus without .bin.
        sequence_length: as given.
        too_long: pairs that were left out, because an answer has more than `sequence_length` + 1 tokens.
    """

    def __init__(self, prefix: str, sequence_length: int, *, padding: int = 0) -> None:
        """Opens both corpora and finds the pairs that fit. `padding`: the token after an answer."""
        self._arguments = {"padding": padding}
        try:
            self._tokens, self._loss = _engine.TokenCorpus(prefix), _engine.TokenCorpus(f"{prefix}.loss")
        except RuntimeError as error:
            raise KeepstepError(f"PreferencePairs: {error}") from None
        documents = self._tokens.documents
        if documents % 2 or self._loss.tokens != self._tokens.tokens:
            raise KeepstepError(
                f"PreferencePairs: '{prefix}' has {documents} documents of {self._tokens.tokens} tokens, and a mask of "
                f"{self._loss.tokens}; `keepstep data chat --pairs` writes pairs with their mask"
            )
        starts = torch.tensor([self._tokens.document_start(each) for each in range(documents + 1)])
        fits = (starts.diff() <= sequence_length + 1).view(-1, 2).all(1)
        self._starts = torch.stack([starts[:-1], starts[1:]], 1).view(-1, 2, 2)[fits]  # [pair, answer, start and end]
        self.prefix = self._tokens.prefix
        self.sequence_length = sequence_length
        self.too_long = int((~fits).sum())
        self._padding = padding
        shape = (2, sequence_length + 1)
        self.layout = (("tokens", shape, torch.int64), ("loss_mask", shape, torch.bool))
        if len(self) == 0:
            raise KeepstepError(
                f"PreferencePairs: none of the {documents // 2} pairs of '{prefix}' fits into {sequence_length + 1} "
                "tokens; choose a greater sequence_length"
            )

    def __len__(self) -> int:
        return len(self._starts)

    def _fill(self, tensors: dict[str, torch.Tensor], samples: Sequence[int], rows: Sequence[int] | None) -> None:
        for row, sample in zip(rows or range(len(samples)), samples, strict=True):
            for answer, (start, end) in enumerate(self._starts[sample].tolist()):
                count = end - start
                for corpus, name, rest in ((self._tokens, "tokens", self._padding), (self._loss, "loss_mask", 0)):
                    read = torch.empty(count, dtype=torch.int64)
                    corpus.read([start], count, read.data_ptr())
                    tensors[name][row, answer, :count] = read
                    tensors[name][row, answer, count:] = rest

    def _announce(self, samples: Sequence[int]) -> None:
        pass  # an answer is a few pages, which the kernel reads ahead
