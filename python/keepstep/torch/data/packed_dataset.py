"""`PackedDataset`: whole documents, or examples with loss masks, packed into samples of fixed length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from keepstep import _engine
from keepstep._errors import KeepstepError
from keepstep.torch.data.mapped_samples import MappedSamples
from keepstep.torch.data.token_dataset import DEFAULT_SPLITS, documents_of


class PackedDataset(MappedSamples):
    """The documents of ``PREFIX.bin``, several to a sample, none cut that fits (best-fit decreasing).

    A sample is a dict of tensors of `sequence_length` + 1, so that ``[:-1]`` are inputs and ``[1:]`` targets:

    - ``tokens`` (int64): the documents one after the other, then padding;
    - ``document_ids`` (int64): 0, 1, ... for the documents in the sample, -1 for padding;
    - ``position_ids`` (int64): from 0 in each document;
    - ``loss_mask`` (bool): which tokens are to be predicted: not padding, not the first of a document, and not what the
      corpus says is only read (`keepstep.data.write_chat`).

    Which documents share a sample is decided once, by the first process that opens the data set while the others wait,
    and kept in a file beside the corpus that all map: PREFIX.pack-*. It depends on the corpus and the arguments alone,
    so samples are the same at every world size. Can be pickled: the files are opened again.

    Attributes:
        prefix: path of the corpus without .bin.
        sequence_length: as given.
        documents: in this split.
        tokens: in all samples, without padding.
        too_long: documents of more than `sequence_length` + 1 tokens, which were cut, truncated or dropped.
        skipped: documents of no token or one, in which there is nothing to predict.
        plan: path of the plan.
    """

    def __init__(
        self,
        prefix: str,
        sequence_length: int,
        *,
        split: str | None = None,
        splits: Mapping[str, float] = DEFAULT_SPLITS,
        too_long: str = "cut",
        padding: int = 0,
        plan_folder: str = "",
    ) -> None:
        """Opens and checks the files; makes the plan if there is none.

        Args:
            split, splits: as of `TokenDataset`.
            too_long: what is done with documents longer than a sample: "cut" into pieces that share one token, so that
                every token but the first is predicted once; "truncate": the first tokens are kept; or "drop".
            padding: the token after the last document.
            plan_folder: where plans are kept, if not beside the corpus.
        """
        if sequence_length < 1:
            raise KeepstepError(f"PackedDataset: sequence_length={sequence_length}; a sample has at least one token")
        self._arguments = {
            "split": split,
            "splits": dict(splits),
            "too_long": too_long,
            "padding": padding,
            "plan_folder": plan_folder,
        }
        try:
            corpus = _engine.TokenCorpus(prefix)
            first, end = documents_of(split, splits, corpus.documents)
            self._packed = _engine.PackedCorpus(prefix, sequence_length + 1, too_long, (first, end), plan_folder)
        except RuntimeError as error:
            raise KeepstepError(f"PackedDataset: {error}") from None
        self.prefix = corpus.prefix
        self.sequence_length = sequence_length
        self.documents = end - first
        self.tokens = self._packed.tokens
        self.too_long = self._packed.cut
        self.skipped = self._packed.skipped
        self.plan = self._packed.path
        self._padding = padding
        shape = (sequence_length + 1,)
        self.layout = (
            ("tokens", shape, torch.int64),
            ("document_ids", shape, torch.int64),
            ("position_ids", shape, torch.int64),
            ("loss_mask", shape, torch.bool),
        )
        if len(self) == 0:
            part = "" if split is None else f" in split '{split}'"
            raise KeepstepError(
                f"PackedDataset: none of the {self.documents} documents of '{self.prefix}'{part} gives a sample: "
                f"{self.skipped} have fewer than two tokens, {self.too_long} are too long (too_long='{too_long}')"
            )

    def __len__(self) -> int:
        return self._packed.rows

    @property
    def filled(self) -> float:
        """The share of tokens that are no padding."""
        return self.tokens / (len(self) * (self.sequence_length + 1))

    def _fill(self, tensors: dict[str, torch.Tensor], samples: Sequence[int], rows: Sequence[int] | None) -> None:
        names = ("tokens", "document_ids", "position_ids", "loss_mask")
        tokens, documents, positions, trained = (tensors[name].data_ptr() for name in names)
        self._packed.read(samples, self._padding, tokens, documents, positions, trained, rows)

    def _announce(self, samples: Sequence[int]) -> None:
        self._packed.will_need(samples)


def document_mask(document_ids: torch.Tensor) -> torch.Tensor:
    """What each token may attend to: itself and what comes before it in its document.

    Args:
        document_ids: [batch, length], as in the samples.

    Returns:
        bool [batch, 1, length, length], True where query (third) may see key (fourth): `attn_mask` of
        ``torch.nn.functional.scaled_dot_product_attention``. Padding sees padding, so that no row is empty.
    """
    same = document_ids.unsqueeze(-1) == document_ids.unsqueeze(-2)
    return same.tril().unsqueeze(1)
