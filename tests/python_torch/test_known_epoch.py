"""Any batch of an epoch of torch's own samplers is the one that iterating over the sampler yields."""

import random
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler

from keepstep._errors import KeepstepError
from keepstep.torch.prepared import batch_order
from keepstep.torch.prepared.batch_order import BatchOrder

SAMPLES = 1007
DATA = range(SAMPLES)


class Session:
    """Keeps what ranks compare."""

    welcome = SimpleNamespace(seed=11)

    def __init__(self):
        self.kept = {}

    def key(self, name):
        return name

    def store(self, op, key, value, ends_with_generation):
        assert op == "compare_set"
        return True, False, True, self.kept.setdefault(key, value.removeprefix(b"0:"))


class Backwards(RandomSampler):
    def __iter__(self):
        return reversed(list(super().__iter__()))


def distributed(**options):
    return DistributedSampler(DATA, num_replicas=4, rank=2, **options)


KNOWN = {
    "shuffled": lambda: DataLoader(DATA, 4, shuffle=True),
    "in order": lambda: DataLoader(DATA, 4),
    "without the last": lambda: DataLoader(DATA, 4, shuffle=True, drop_last=True),
    "with a generator": lambda: DataLoader(DATA, 4, shuffle=True, generator=torch.Generator()),
    "one batch": lambda: DataLoader(DATA, SAMPLES + 1, shuffle=True),
    "no batches": lambda: DataLoader(DATA, None, sampler=RandomSampler(DATA)),
    "no batches, in order": lambda: DataLoader(DATA, None),
    "distributed": lambda: DataLoader(DATA, 4, sampler=distributed()),
    "distributed, in order": lambda: DataLoader(DATA, 4, sampler=distributed(shuffle=False)),
    "distributed, with a seed": lambda: DataLoader(DATA, 4, sampler=distributed(seed=5, drop_last=True)),
    "a batch sampler": lambda: DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 7, False)),
}
OTHERS = {
    "drawn again": lambda: DataLoader(DATA, 4, sampler=RandomSampler(DATA, replacement=True)),
    "a part": lambda: DataLoader(DATA, 4, sampler=RandomSampler(DATA, num_samples=100)),
    "the user's": lambda: DataLoader(DATA, 4, sampler=Backwards(DATA)),
}


@pytest.mark.parametrize("kind", KNOWN)
def test_any_batch_is_the_sampler_s(monkeypatch, kind):
    known = BatchOrder(KNOWN[kind](), Session())
    numbers = range(3 * known.length)
    epochs = [numbers[begin : begin + known.length] for begin in range(0, len(numbers), known.length)]
    mine = {number: known[number] for epoch in epochs for number in random.Random(1).sample(epoch, len(epoch))}
    assert known._known is not None
    monkeypatch.setattr(batch_order, "known_epoch", lambda sampler: None)
    iterated = BatchOrder(KNOWN[kind](), Session())
    before = torch.random.get_rng_state()
    assert [iterated[number] for number in numbers] == [mine[number] for number in numbers]
    assert iterated._known is None
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("kind", OTHERS)
def test_other_samplers_are_iterated(kind):
    order = BatchOrder(OTHERS[kind](), Session())
    first = [order[number] for number in range(order.length)]
    assert order._known is None
    assert [order[number] for number in range(order.length)] == first


def test_the_loop_s_random_numbers_stay_as_they_are():
    order = BatchOrder(KNOWN["shuffled"](), Session())
    before = torch.random.get_rng_state(), random.getstate()
    order[order.length + 5]
    assert torch.equal(torch.random.get_rng_state(), before[0]) and random.getstate() == before[1]


def test_an_order_that_differs_from_another_rank_s_is_refused():
    session = Session()
    BatchOrder(KNOWN["shuffled"](), session)[0]
    with pytest.raises(KeepstepError, match="another order here"):
        BatchOrder(KNOWN["in order"](), session)[0]
