"""`keepstep.data.TokenDataset`: samples, splits, documents, errors."""

import faulthandler
import pickle
import random

import pytest
import torch

from keepstep import KeepstepError, _engine
from keepstep.data import TokenDataset


def write(prefix, documents, kind="uint16"):
    writer = _engine.TokenWriter.create(str(prefix), kind)
    for document in documents:
        writer.add(document)
        writer.end_document()
    writer.finish()
    return str(prefix)


@pytest.fixture
def documents():
    numbers = random.Random(3)
    return [[numbers.randrange(60_000) for _ in range(numbers.randrange(40))] for _ in range(200)]


def test_samples_cover_every_token_once(tmp_path, documents):
    stream = [token for document in documents for token in document]
    dataset = TokenDataset(write(tmp_path / "c", documents), 16)
    assert len(dataset) == (len(stream) - 1) // 16
    assert dataset.tokens == len(stream) and dataset.documents == 200
    inputs = torch.cat([dataset[i][:-1] for i in range(len(dataset))])
    targets = torch.cat([dataset[i][1:] for i in range(len(dataset))])
    covered = len(dataset) * 16
    assert inputs.dtype == torch.int64
    assert inputs.tolist() == stream[:covered]
    assert targets.tolist() == stream[1 : covered + 1]


def test_a_batch_is_its_samples(tmp_path, documents):
    dataset = TokenDataset(write(tmp_path / "c", documents), 7)
    chosen = random.Random(1).sample(range(len(dataset)), 50)
    assert torch.equal(dataset.make_batch(chosen), torch.stack([dataset[i] for i in chosen]))
    dataset.will_need(chosen)


def test_document_ids_are_for_masks(tmp_path):
    dataset = TokenDataset(write(tmp_path / "c", [[1, 2], [], [3, 4, 5], [6]]), 5, document_ids=True)
    (sample,) = (dataset[i] for i in range(len(dataset)))
    assert sample["tokens"].tolist() == [1, 2, 3, 4, 5, 6]
    assert sample["document_ids"].tolist() == [0, 0, 1, 1, 1, 2]
    assert sample["position_ids"].tolist() == [0, 1, 0, 1, 2, 0]


def test_splits_share_no_document_and_leave_none_out(tmp_path, documents):
    prefix = write(tmp_path / "c", documents)
    splits = {"train": 8, "valid": 1, "test": 1}
    parts = [TokenDataset(prefix, 1, split=name, splits=splits) for name in splits]
    assert [part.documents for part in parts] == [160, 20, 20]
    assert sum(part.tokens for part in parts) == sum(map(len, documents))
    first_of_valid = next(token for document in documents[160:] for token in document)
    assert parts[1][0][0] == first_of_valid
    assert int(parts[0][len(parts[0]) - 1][1]) == [t for d in documents[:160] for t in d][-1]


def test_a_pickled_data_set_opens_its_files_again(tmp_path, documents):
    dataset = TokenDataset(write(tmp_path / "c", documents), 7, split="train", document_ids=True)
    again = pickle.loads(pickle.dumps(dataset))
    assert type(again) is TokenDataset
    assert len(again) == len(dataset)
    assert torch.equal(again[5]["tokens"], dataset[5]["tokens"])


def test_torchs_loader_reads_it_with_workers(tmp_path, documents):
    dataset = TokenDataset(write(tmp_path / "c", documents), 7)
    loader = torch.utils.data.DataLoader(dataset, batch_size=4, num_workers=2)
    assert torch.equal(torch.cat(list(loader)), torch.stack([dataset[i] for i in range(len(dataset))]))


def test_mistakes_are_named(tmp_path):
    prefix = write(tmp_path / "c", [[1, 2, 3]])
    with pytest.raises(KeepstepError, match="has 3 tokens; one sample of sequence_length=3 needs 4"):
        TokenDataset(prefix, 3)
    with pytest.raises(KeepstepError, match="0 tokens in split 'test'"):
        TokenDataset(prefix, 1, split="test")
    with pytest.raises(KeepstepError, match="no split 'dev'; there are train, valid, test"):
        TokenDataset(prefix, 1, split="dev")
    with pytest.raises(KeepstepError, match="sequence_length=0"):
        TokenDataset(prefix, 0)
    with pytest.raises(KeepstepError, match=r"nothing\.idx"):
        TokenDataset(str(tmp_path / "nothing"), 1)
    with pytest.raises(IndexError, match="sample 1 of"):
        TokenDataset(prefix, 2)[1]
    (tmp_path / "c.bin").write_bytes(b"\0")
    with pytest.raises(KeepstepError, match="lies outside the 1 bytes"):
        TokenDataset(prefix, 2)


def test_a_corpus_that_is_truncated_under_us_is_an_error_that_names_it(tmp_path):
    prefix = write(tmp_path / "c", [list(range(50_000))])
    dataset = TokenDataset(prefix, 100)
    dataset[len(dataset) - 1]
    with open(f"{prefix}.bin", "r+b") as tokens:
        tokens.truncate(4096)
    with pytest.raises(KeepstepError, match=r"c\.bin' had 100000 bytes .*it has 4096 bytes now"):
        dataset[len(dataset) - 1]


def test_so_it_is_where_somebody_else_took_the_signal_meanwhile(tmp_path):
    TokenDataset(write(tmp_path / "first", [[1, 2, 3, 4]]), 2)
    faulthandler.enable()
    prefix = write(tmp_path / "c", [list(range(50_000))])
    dataset = TokenDataset(prefix, 100)
    with open(f"{prefix}.bin", "r+b") as tokens:
        tokens.truncate(4096)
    with pytest.raises(KeepstepError, match=r"c\.bin' had 100000 bytes .*it has 4096 bytes now"):
        dataset[len(dataset) - 1]
