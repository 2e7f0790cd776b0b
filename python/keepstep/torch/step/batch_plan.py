"""Which samples a step uses, for data whose samples have numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from keepstep import _engine
from keepstep._errors import KeepstepError
from keepstep.torch.data.map_dataset import MapDataset

READ_AHEAD_STEPS = 2  # how long before its use a sample is read from disk


class BatchPlan:
    """Which samples a step uses, and which of them a rank computes.

    A step's `global_batch` samples are split into `global_batch // micro_batch` micro-batches. Each rank owns a
    contiguous run of them; if they do not divide evenly, the first ranks own one more. A plan belongs to one rank in
    one generation. `origin`: a step, and the number of samples before it; from there on each step takes the plan's
    global batch.
    """

    def __init__(
        self,
        dataset: MapDataset,
        global_batch: int,
        micro_batch: int,
        shuffle: bool,
        collate: Callable[[list[Any]], Any] | None,
        seed: int,
        rank: int,
        world_size: int,
        origin: tuple[int, int] = (1, 0),
    ) -> None:
        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            raise KeepstepError(
                f"run.steps: the dataset is a {type(dataset).__qualname__}; one with __len__ and __getitem__ is "
                "needed, so that the position of the job is one number. For anything else write "
                "run.steps(keepstep.data.cached(DataLoader(...)), ...)"
            )
        if len(dataset) == 0:
            raise KeepstepError("run.steps: the dataset is empty")
        if micro_batch < 1 or global_batch < 1 or global_batch % micro_batch:
            raise KeepstepError(f"run.steps: global_batch={global_batch} is no multiple of micro_batch={micro_batch}")
        self.dataset = dataset
        self.global_batch = global_batch
        self.micro_batch = micro_batch
        self.micro_batches = global_batch // micro_batch
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self._origin = origin
        self._shuffle = shuffle
        if collate is None and not hasattr(dataset, "make_batch"):
            from torch.utils.data import default_collate

            collate = default_collate
        self._collate = collate
        if self.micro_batches < world_size:
            raise KeepstepError(
                f"run.steps: {self.micro_batches} micro-batches (global_batch={self.global_batch} / "
                f"micro_batch={self.micro_batch}) cannot feed {world_size} ranks, each of which needs one: use a "
                f"smaller micro_batch or a larger global_batch, or at most {self.micro_batches} ranks "
                "(--nproc-per-node, --nnodes; with --min-replicas the job goes on with as many as are fed)"
            )
        self.micros = range(*_engine.even_run(self.micro_batches, rank, world_size))  # this rank's
        self._coming: dict[int, list[int]] = {}  # samples of steps that were announced

    def shortened(self, most: int) -> BatchPlan:
        """The same plan with as many micro-batches per rank as the last rank has, and at most `most`."""
        begin, end = _engine.even_run(self.micro_batches, self.world_size - 1, self.world_size)
        plan = copy.copy(self)
        plan._coming = {}
        plan.micro_batches = min(most, end - begin) * self.world_size
        plan.global_batch = plan.micro_batches * self.micro_batch
        plan.micros = range(*_engine.even_run(plan.micro_batches, self.rank, self.world_size))
        return plan

    def read_ahead(self, step: int) -> None:
        """Tells the dataset, if it wants to know, what this rank will read in `step` and the next ones."""
        if not hasattr(self.dataset, "will_need"):
            return
        for coming in range(step, step + READ_AHEAD_STEPS + 1):
            if coming not in self._coming:
                self._coming[coming] = self._samples(coming)
                self.dataset.will_need(self._coming[coming])

    def samples(self, step: int) -> list[int]:
        """The samples of this rank's micro-batches of `step` (1-based), in order."""
        return self._coming.pop(step, None) or self._samples(step)

    def _samples(self, step: int) -> list[int]:
        since, before = self._origin
        position = before + (step - since) * self.global_batch + self.micros.start * self.micro_batch
        count = len(self.micros) * self.micro_batch
        if hasattr(self.dataset, "job_order"):
            return list(self.dataset.job_order(self.seed, position, count, self._shuffle))
        if self._shuffle:
            return _engine.samples_at(self.seed, position, count, len(self.dataset))
        return [(position + i) % len(self.dataset) for i in range(count)]

    def batch(self, samples: list[int]) -> Any:
        """The micro-batch of these samples."""
        if self._collate is None:
            return self.dataset.make_batch(samples)  # type: ignore[attr-defined]
        return self._collate([self.dataset[i] for i in samples])
