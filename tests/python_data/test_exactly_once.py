"""What committed steps used is a prefix of the order, whatever the sequence of kills, resizes and epoch ends.

Without processes: each rank's `BatchPlan` is asked as `run.steps` does, and what an interrupted step did is forgotten
as a killed process forgets it. Real processes are killed in tests/integration/data/test_data_kills.py. A failure
prints the seed.
"""

import random
from collections import Counter

import pytest
import torch
from test_token_dataset import write

from keepstep import _engine
from keepstep.data import Blend, PackedDataset, TokenDataset
from keepstep.torch.step.batch_plan import BatchPlan

SCHEDULES = 40


class Job:
    """A job of changing ranks: generations, steps that are committed or redone, and what the committed ones used."""

    def __init__(self, dataset, numbers):
        self.dataset = dataset
        self.numbers = numbers
        self.micro_batch = numbers.randrange(1, 4)
        self.micro_batches = numbers.randrange(16, 24)  # at least one for each of 16 ranks, and rarely as many for each
        self.seed = numbers.randrange(2**63)
        self.shuffle = numbers.random() < 0.8
        self.used = []  # samples by committed step
        self.batches = []  # their micro-batches by committed step

    def plan(self, rank, world):
        global_batch = self.micro_batch * self.micro_batches
        return BatchPlan(self.dataset, global_batch, self.micro_batch, self.shuffle, None, self.seed, rank, world)

    def compute(self, plan, step, until=None):
        """A rank's part of a step, or its first micro-batches: then it dies, and nobody hears of them."""
        plan.read_ahead(step)
        ids = plan.samples(step)
        size = self.micro_batch
        cuts = [ids[at : at + size] for at in range(0, len(ids), size)][:until]
        return ids, [plan.batch(cut) for cut in cuts]

    def run(self, steps):
        while len(self.used) < steps:
            world = self.numbers.randrange(1, 17)  # a resize, or a replacement where it is the same
            plans = [self.plan(rank, world) for rank in range(world)]
            for _ in range(self.numbers.randrange(1, 4)):
                step = len(self.used) + 1
                if self.numbers.random() < 0.3:  # a kill: some ranks were done, others in the middle, others not there
                    for plan in self.numbers.sample(plans, self.numbers.randrange(1, world + 1)):
                        self.compute(plan, step, until=self.numbers.randrange(3))
                    break
                ids, batches = [], []
                for plan in plans:
                    mine, made = self.compute(plan, step)
                    ids += mine
                    batches += made
                self.used.append(ids)
                self.batches.append(batches)
            if self.numbers.random() < 0.03:  # no clean copy is left: back to an older version
                keep = self.numbers.randrange(len(self.used) + 1)
                del self.used[keep:], self.batches[keep:]

    def expected(self):
        """The plain order from position 0."""
        count = sum(map(len, self.used))
        if hasattr(self.dataset, "job_order"):
            return self.dataset.job_order(self.seed, 0, count, self.shuffle)
        if self.shuffle:
            return _engine.samples_at(self.seed, 0, count, len(self.dataset))
        return [place % len(self.dataset) for place in range(count)]


def assert_same_bits(a, b):
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and torch.equal(a, b)
    else:
        assert a.keys() == b.keys()
        for name in a:
            assert_same_bits(a[name], b[name])


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    """Few samples, so that epochs end within a step."""
    folder = tmp_path_factory.mktemp("corpora")
    numbers = random.Random(9)
    texts = [[numbers.randrange(60_000) for _ in range(numbers.randrange(60))] for _ in range(120)]
    a, b = write(folder / "a", texts[:90]), write(folder / "b", texts[90:])
    return {
        "tokens": TokenDataset(a, 16),
        "documents": TokenDataset(a, 16, split="train", document_ids=True),
        "packed": PackedDataset(b, 16),
        "blend": Blend({a: 0.7, b: 0.3}, sequence_length=16),
        "list": [torch.full((2,), number) for number in range(37)],
    }


@pytest.mark.parametrize("kind", ["tokens", "documents", "packed", "blend", "list"])
def test_committed_steps_used_the_expected_prefix_in_the_same_batches(datasets, kind):
    for seed in range(SCHEDULES):
        job = Job(datasets[kind], random.Random(f"{kind} {seed}"))
        try:
            job.run(8)
            flat = [sample for ids in job.used for sample in ids]
            expected = job.expected()
            assert Counter(flat) == Counter(expected)
            assert flat == expected
            alone = job.plan(0, 1)
            for step, batches in enumerate(job.batches, 1):
                assert len(batches) == job.micro_batches
                for ours, theirs in zip(batches, job.compute(alone, step)[1], strict=True):
                    assert_same_bits(ours, theirs)
        except AssertionError:
            print(f"the schedule is Random('{kind} {seed}')")
            raise


@pytest.mark.parametrize("kind", ["tokens", "packed", "blend"])
def test_each_epoch_has_each_sample_once(datasets, kind):
    dataset = datasets[kind]
    sources = list(dataset.sources.values()) if kind == "blend" else [dataset]
    order = BatchPlan(dataset, 1000, 1, True, None, 3, 0, 1).samples(1)
    first = 0
    for source in sources:
        own = [sample for sample in order if first <= sample < first + len(source)]
        for epoch in range(len(own) // len(source)):
            part = own[epoch * len(source) : (epoch + 1) * len(source)]
            assert sorted(part) == list(range(first, first + len(source)))
        first += len(source)
