"""What `keepstep.data.cached` refuses, and with which words; and a loader for one process alone, which needs no job."""

import time

import pytest
import torch

from keepstep import KeepstepError
from keepstep.data import cached
from keepstep.torch.step.stream_plan import StreamPlan


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, number):
        return torch.tensor([number])


def loader(**how):
    return torch.utils.data.DataLoader(Numbers(), batch_size=2, **how)


@pytest.fixture
def name():
    return f"test-{time.monotonic_ns()}"


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"ahead": 0}, "ahead=0 is 1 to 65,536 rounds"),
        ({"ahead": 10**10}, "ahead=10000000000 is 1 to"),
        ({"behind": -1}, "behind=-1 0 to"),
        ({"limit_bytes": 0}, "limit_bytes=0 is no room"),
        ({"limit_bytes": 1 << 64}, "or no size; None is no limit"),
    ],
)
def test_numbers_that_cannot_be_are_named(how, words, name):
    with pytest.raises(KeepstepError, match=words):
        cached(loader(), name=name, **how)


def test_what_cannot_be_iterated_or_yields_a_share_is_refused(name):
    with pytest.raises(KeepstepError, match="the loader is a int, which cannot be iterated"):
        cached(7, name=name)
    sampler = torch.utils.data.DistributedSampler(Numbers(), num_replicas=2, rank=0)
    with pytest.raises(KeepstepError, match="DistributedSampler with num_replicas=2, which yields one rank's share"):
        cached(loader(sampler=sampler), name=name)


def test_two_loaders_need_two_names(name):
    first = cached(loader(), name=name)
    with pytest.raises(KeepstepError, match=rf"there is a loader '{name}' already, made at .*{__name__}.*name="):
        cached(loader(), name=name)
    assert first.position == 0


def test_steps_want_the_loaders_batch_size_and_no_collate(name):
    data = cached(loader(), name=name)
    with pytest.raises(KeepstepError, match="micro_batch=3, and the cached loader has batch_size=2"):
        StreamPlan(data, 6, 3, None, 0, 0, 1)
    with pytest.raises(KeepstepError, match="collate= belongs to the loader"):
        StreamPlan(data, 6, 2, list, 0, 0, 1)


@pytest.mark.parametrize("state", [{}, {"position": -1, "epoch": 0, "index": 0}, {"position": 1, "epoch": "0"}])
def test_a_checkpoint_that_is_none_is_refused(state, name):
    with pytest.raises(KeepstepError, match="is no state of a cached loader"):
        cached(loader(), name=name).load_state_dict(state)


def test_a_ring_that_cannot_be_says_what_to_change(name, monkeypatch):
    monkeypatch.setenv("KEEPSTEP_JOB", name)
    data = cached(loader(), ahead=60_000, behind=60_000, name=name)
    with pytest.raises(KeepstepError, match="lower ahead= or behind="):
        next(iter(data))
    far = cached(loader(), name=f"{name}-far")
    far.load_state_dict({"position": 1 << 63, "epoch": 0, "index": 0, "loader": None})
    with pytest.raises(KeepstepError, match="position 9223372036854775808; the last one is"):
        next(iter(far))


def test_an_object_in_a_batch_is_an_error_that_names_its_place(name, monkeypatch):
    monkeypatch.setenv("KEEPSTEP_JOB", name)
    data = cached([{"x": [1, object()]}], name=name)
    with pytest.raises(KeepstepError, match=r"batch\['x'\]\[1\] is a builtins.object, which cannot be carried"):
        next(iter(data))


def test_a_process_alone_reads_its_epochs(name, monkeypatch):
    monkeypatch.setenv("KEEPSTEP_JOB", name)
    data = cached(loader(shuffle=True), name=name)
    epochs = [[int(number) for batch in data for number in batch.flatten()] for _ in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [[*range(10)]] * 2 and epochs[0] != epochs[1]
    assert data.position == 10
