"""What committed steps used of a cached loader is a prefix of its order, whatever the sequence of faults and resizes.

The ring is the real one: an agent's memory, filled by loader processes that are killed at random. The ranks are places
in it that this process holds, each with the plan that `run.steps` asks. Real ranks are killed in
tests/integration/data/test_cached_batches.py. A failure prints the seed.
"""

import os
import random
import signal
import time
from collections import Counter

import pytest
import torch

from keepstep.torch.data.cached import CachedLoader
from keepstep.torch.data.loader_process import Source
from keepstep.torch.data.ring_slot import RingSlot
from keepstep.torch.step.stream_plan import StreamPlan

MICRO_BATCH = 3


class Samples(torch.utils.data.Dataset):
    """Rows of different widths, which follow from their numbers."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, sample):
        return sample, torch.full((1 + sample * 37 % 2000,), sample, dtype=torch.float32) + torch.rand(())


def collate(samples):
    rows = [row for _, row in samples]
    return {"ids": torch.tensor([sample for sample, _ in samples]), "rows": rows, "pid": os.getpid()}


class Rank(CachedLoader):
    """One of many ranks in this process."""

    def __init__(self, loader, name, ahead, behind, seed):
        super().__init__(loader, ahead, behind, None, name, seed, where="here")
        self.own_place = RingSlot(name)

    def _place(self):
        return self.own_place


class Job:
    """A job of changing ranks: generations, steps that are committed or redone, and what the committed ones used."""

    def __init__(self, numbers, name):
        self.numbers = numbers
        self.name = name
        self.seed = numbers.randrange(2**63)
        self.micro_batches = numbers.randrange(16, 24)
        self.ahead = numbers.randrange(1, 4)
        self.behind = numbers.randrange(3)
        # The last batch of an epoch is smaller, and epochs end within a step.
        self.loader = torch.utils.data.DataLoader(
            Samples(numbers.randrange(20, 120)), batch_size=MICRO_BATCH, shuffle=True, collate_fn=collate
        )
        self.batches = []  # by committed step
        self.faults = Counter()

    def compute(self, plan, step, until=None):
        """A rank's part of a step, or its first micro-batches."""
        ids = plan.samples(step)
        return [plan.batch(ids[at : at + MICRO_BATCH]) for at in range(0, len(ids), MICRO_BATCH)][:until]

    def kill_loader(self, pid):
        try:
            with open(f"/proc/{pid}/comm") as file:
                if file.read().strip() == "keepstep-loader":
                    os.kill(pid, signal.SIGKILL)
                    self.faults["loader"] += 1
        except (FileNotFoundError, ProcessLookupError):
            pass  # it ended before

    def run(self, steps):
        before = []  # ranks of the generation before: they are gone when the first of the next one have come
        while len(self.batches) < steps:
            world = self.numbers.randrange(1, 17)  # a resize, or a replacement where it is the same
            if self.numbers.random() < 0.2:  # nobody survives, and their ring goes with them
                self.gone(before)
            ranks = [Rank(self.loader, self.name, self.ahead, self.behind, self.seed) for _ in range(world)]
            size = self.micro_batches * MICRO_BATCH
            plans = [
                StreamPlan(each, size, MICRO_BATCH, None, self.seed, rank, world) for rank, each in enumerate(ranks)
            ]
            for plan in plans:
                plan.samples(len(self.batches) + 1)
            self.gone(before)
            for _ in range(self.numbers.randrange(1, 4)):
                step = len(self.batches) + 1
                if self.numbers.random() < 0.3:  # some ranks were done, others in the middle, others not there
                    for plan in self.numbers.sample(plans, self.numbers.randrange(1, world + 1)):
                        self.compute(plan, step, until=self.numbers.randrange(3))
                    self.faults["rank"] += 1
                    break
                made = []
                for plan in plans:
                    made += self.compute(plan, step)
                    if self.numbers.random() < 0.03:
                        self.kill_loader(made[-1]["pid"])
                self.batches.append(made)
            before = ranks
            if self.numbers.random() < 0.05:  # no clean copy is left: back to an older version
                del self.batches[self.numbers.randrange(len(self.batches) + 1) :]
                self.faults["older"] += 1
        self.gone(before)

    @staticmethod
    def gone(ranks):
        for each in ranks:
            each.own_place.leave()
        ranks.clear()

    def expected(self):
        source = Source(self.loader, self.seed)
        source.begin(0, 0)
        return [source.next()[2] for _ in range(sum(map(len, self.batches)))]


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(6, 60))])
def test_committed_steps_used_the_expected_prefix_in_the_same_batches(seed, monkeypatch):
    name = f"exactly-once-{os.getpid()}-{time.monotonic_ns()}"
    monkeypatch.setenv("KEEPSTEP_JOB", name)
    job = Job(random.Random(seed), name)
    job.run(8)
    used = [batch for step in job.batches for batch in step]
    expected = job.expected()
    why = f"the schedule is Random({seed}); {job.faults}"
    ids = [sample for batch in used for sample in batch["ids"].tolist()]
    assert Counter(ids) == Counter(sample for batch in expected for sample in batch["ids"].tolist()), why
    epochs = [ids[at : at + len(job.loader.dataset)] for at in range(0, len(ids), len(job.loader.dataset))]
    assert len(epochs) > 1 and all(sorted(epoch) == list(range(len(epoch))) for epoch in epochs[:-1]), why
    for number, (ours, theirs) in enumerate(zip(used, expected, strict=True)):
        assert torch.equal(ours["ids"], theirs["ids"]), f"batch {number}: {why}"
        for a, b in zip(ours["rows"], theirs["rows"], strict=True):
            assert torch.equal(a, b), f"batch {number}: {why}"
    assert all(len(step) == job.micro_batches for step in job.batches)
