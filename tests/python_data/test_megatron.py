"""Corpora are Megatron's: its reader reads ours, and we read its, with the real package."""

import random

import numpy
import pytest

from keepstep import _engine
from keepstep.data import TokenDataset

indexed_dataset = pytest.importorskip("megatron.core.datasets.indexed_dataset")


@pytest.fixture
def documents():
    """Documents of one to four sequences of up to 30 tokens."""
    numbers = random.Random(11)
    return [
        [[numbers.randrange(30_000) for _ in range(numbers.randrange(30))] for _ in range(numbers.randrange(1, 5))]
        for _ in range(100)
    ]


def sequences(documents):
    return [sequence for document in documents for sequence in document]


@pytest.mark.parametrize("kind", ["uint16", "int16", "int32", "int64"])
def test_megatron_reads_what_keepstep_writes(tmp_path, documents, kind):
    writer = _engine.TokenWriter.create(str(tmp_path / "ours"), kind)
    for document in documents:
        for sequence in document:
            writer.add(sequence)
        writer.end_document()
    writer.finish()
    theirs = indexed_dataset.IndexedDataset(str(tmp_path / "ours"))
    assert theirs.index.dtype == numpy.dtype(kind)
    assert [theirs[i].tolist() for i in range(len(theirs))] == sequences(documents)
    counts = [0]
    for document in documents:
        counts.append(counts[-1] + len(document))
    assert theirs.document_indices.tolist() == counts


@pytest.mark.parametrize("kind", ["uint16", "int32"])
def test_keepstep_reads_what_megatron_writes(tmp_path, documents, kind):
    import torch

    prefix = str(tmp_path / "theirs")
    builder = indexed_dataset.IndexedDatasetBuilder(prefix + ".bin", dtype=numpy.dtype(kind).type)
    for document in documents:
        for sequence in document:
            builder.add_item(torch.tensor(sequence, dtype=torch.int64))
        builder.end_document()
    builder.finalize(prefix + ".idx")
    ours = _engine.TokenCorpus(prefix)
    assert (ours.type, ours.documents, ours.sequences) == (kind, len(documents), len(sequences(documents)))
    stream = [token for sequence in sequences(documents) for token in sequence]
    dataset = TokenDataset(prefix, 1)
    assert [int(dataset[i][0]) for i in range(len(dataset))] == stream[:-1]


def test_both_write_the_same_bytes(tmp_path, documents):
    import torch

    writer = _engine.TokenWriter.create(str(tmp_path / "ours"), "uint16")
    builder = indexed_dataset.IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=numpy.uint16)
    for document in documents:
        for sequence in document:
            writer.add(sequence)
            builder.add_item(torch.tensor(sequence, dtype=torch.int64))
        writer.end_document()
        builder.end_document()
    writer.finish()
    builder.finalize(str(tmp_path / "theirs.idx"))
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"ours{suffix}").read_bytes() == (tmp_path / f"theirs{suffix}").read_bytes()
