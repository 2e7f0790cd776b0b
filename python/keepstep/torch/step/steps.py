"""One step of training: this rank's micro-batches, the weighted backward, the loss."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from keepstep import _engine
from keepstep._errors import KeepstepError
from keepstep.torch import seeds
from keepstep.torch.data.data_waits import DataWaits
from keepstep.torch.data.map_dataset import MapDataset
from keepstep.torch.data_parallel import replicas
from keepstep.torch.reduction.global_loss import GlobalLoss

if TYPE_CHECKING:
    from keepstep.torch.runtime.run import Run


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


class CommittedStep:
    """A step that all ranks committed, as passed to the functions of ``run.evaluate``.

    Attributes:
        number: from 1.
        run: the run that it belongs to.
    """

    def __init__(self, run: Run, number: int) -> None:
        self.run = run
        self.number = number

    def log(self, **values: Any) -> None:
        """Publishes `values` with this step: once per committed step, in the journal's metrics.jsonl.

        What is logged before ``step.commit`` is kept only if the step is committed. If several ranks log one name, the
        lowest rank's value is kept. Values: numbers, strings, lists and dicts of them, tensors of one element; up to
        100,000 bytes per call.
        """
        self.run._log(self.number, values)


class Step(CommittedStep):
    """One step of `run.steps`; iterate over it for this rank's micro-batches.

    Attributes:
        number: from 1; committing step k makes version k of the protected state.
        global_batch: its samples, over all ranks.
        sample_ids: this rank's samples in this step, in the order of its micro-batches.
        run: the run that it belongs to.
        data_waits: how long this step's batches waited for data.
        vetoed: after the commit: whether a rank vetoed the update, so nothing changed (``step.commit(..., veto=...)``).
        reproducible: whether gradients and loss have the same bits for every number of ranks
            (``run.ddp(model, reproducible=True)``).
    """

    def __init__(self, run: Run, plan: BatchPlan, number: int) -> None:
        super().__init__(run, number)
        self._plan = plan
        self.global_batch = plan.global_batch
        self._micros = plan.micros
        self.sample_ids: list[int] = plan.samples(number)
        self.data_waits = DataWaits()
        self._losses: list[torch.Tensor] = []
        self._counts: list[int | None] = []
        self._replicas = replicas.reproducible()
        self.reproducible = bool(self._replicas)
        self._loss_of_all = GlobalLoss(plan.micro_batches, self._micros) if self.reproducible else None
        self._global_loss: float | None = None
        self.vetoed = False
        self.voted = False
        self.committed = False
        self._seed(plan.micro_batches)

    def _seed(self, micro_batch: int) -> None:
        """Seeds the random numbers of the next micro-batch; from plan.micro_batches on, of the code around them."""
        if self.reproducible:
            seeds.seed_micro_batch(self._plan.seed, self.number, micro_batch)
        elif micro_batch == self._plan.micro_batches:
            seeds.seed_all(_engine.mix_seed(self._plan.seed, self.number, self._plan.rank))

    def __iter__(self) -> Iterator[Any]:
        size = self._plan.micro_batch
        for replica in self._replicas:
            replica.begin_step(self._plan.micro_batches, self._micros)
        for index, micro_batch in enumerate(self._micros):
            self.run._check_interrupted()
            self._check_done(index)
            self._seed(micro_batch)
            self.run._engine.at(self.number, index + 1)
            ids = self.sample_ids[index * size : (index + 1) * size]
            with self.data_waits:
                batch = self._plan.batch(ids)
            replicas.synchronize_on(index == len(self._micros) - 1)
            yield batch
        replicas.synchronize_on(True)
        if self.reproducible:
            self._seed(self._plan.micro_batches + 1)  # the update draws the same numbers on every rank

    def _check_done(self, expected: int) -> None:
        """In reproducible mode, and with `count`: checks that each micro-batch so far had exactly one backward pass."""
        if self._counts and self._counts[0] is not None and len(self._counts) != expected:
            raise KeepstepError(
                f"step {self.number}: {len(self._counts)} times step.backward(count=...) for {expected} micro-batches; "
                "each has exactly one, so that the counts add up"
            )
        for replica in self._replicas:
            if replica.micro_batches_done != expected:
                raise KeepstepError(
                    f"step {self.number}: {replica.micro_batches_done} backward passes for {expected} micro-batches; "
                    "in reproducible mode each micro-batch has exactly one, through every wrapped model"
                )

    def commit(
        self,
        *update: Callable[[], Any],
        communicates: bool = False,
        veto: Callable[[Step], str | bool | None] | None = None,
    ) -> None:
        """Lets all ranks vote, then runs everything in `update`, in order: the step counts on all ranks or on none.

        Everything that changes protected state belongs here (scaler.step and update, optimizer.step, schedule.step,
        averages); clip and unscale before. Afterwards gradients are None.

        Args:
            communicates: whether the optimizer uses collectives in its step. Then a copy of what it overwrites is kept,
                the vote follows the update, and a redo restores the copy.
            veto: gets the step with its reduced gradients, and returns a reason to skip the update, or None. If any
                rank returns a reason, no rank runs `update`: the step counts, its gradients are dropped,
                ``step.vetoed`` is True, and nothing else changes. See `keepstep.veto`.

        Raises:
            Interruption: the step is redone.
            KeepstepError: a second commit of one step, or one inside ``run.restored()``.
        """
        self.run._commit_step(self, update, communicates, veto)

    def backward(
        self, loss: torch.Tensor, scaler: torch.amp.GradScaler | None = None, count: int | None = None
    ) -> None:
        """Runs one micro-batch's backward, weighted so that the sum over all ranks is the mean of the global batch.

        Args:
            loss: a scalar, the mean over the micro-batch; with `count`, the sum over that many things (tokens).
            scaler: scales the loss for mixed precision; ``step.loss`` stays unscaled.
            count: gradients and ``step.loss`` are divided by the sum of the step's counts over all ranks, after the
                last micro-batch. Give it for every micro-batch or for none.
        """
        if count is not None and count < 0:
            raise KeepstepError(f"step.backward: count={count}; a micro-batch has 0 things or more")
        if self._counts and (self._counts[0] is None) != (count is None):
            raise KeepstepError("step.backward: give count= for every micro-batch of the step, or for none")
        self._losses.append(loss.detach())
        self._counts.append(count)
        if self._loss_of_all is not None:
            weighted = loss
            for replica in self._replicas:
                replica.weigh(1 if count is None else count)
            self._loss_of_all.add(loss.detach(), 1 if count is None else count)
        else:
            # DDP divides by the world size; each micro-batch counts 1 / micro_batches of the global batch. Sums count
            # what is known only at the end; until then a sample is one, so that small dtypes do not overflow.
            parts = self._plan.micro_batches if count is None else self._plan.global_batch
            weighted = loss * (self._plan.world_size / parts)
        if scaler is not None:
            weighted = scaler.scale(weighted)
        weighted.backward()  # type: ignore[no-untyped-call]
        if count is not None and self._loss_of_all is None and len(self._counts) == len(self._micros):
            replicas.divide_by_counts(self._local_count(), self._plan.global_batch)

    def add_loss(self, loss: torch.Tensor, count: int | None = None) -> None:
        """Adds the loss of one micro-batch whose backward something else ran, such as a pipeline schedule.

        It does not touch gradients. The schedules of ``torch.distributed.pipelining`` average over this rank's samples,
        and FSDP2 or DDP then average over the ranks of the mesh. So a rank has one micro-batch per step, and the
        schedule splits it into smaller ones.

        Args:
            loss: a scalar, the mean over the micro-batch; with `count`, the sum over that many things. Ranks of other
                stages, which have no loss, leave it out.
            count: as for `backward`, but changes only ``step.loss``, no gradient.
        """
        if self.reproducible:
            raise KeepstepError("step.add_loss: in reproducible mode each micro-batch has one step.backward(loss)")
        if len(self._micros) != 1:
            raise KeepstepError(
                f"step.add_loss: this rank has {len(self._micros)} micro-batches a step, whose gradients would be "
                f"added and not averaged; let run.steps have micro_batch={self.global_batch // self._plan.world_size}, "
                "and the schedule cut it"
            )
        self._losses.append(loss.detach())
        self._counts.append(count)

    @property
    def loss(self) -> float:
        """The mean loss of this rank's micro-batches so far; after the commit that of all ranks, the same on each."""
        if self._global_loss is not None:
            return self._global_loss
        count = self._local_count()
        return self._local_sum() / count if count else float("nan")

    def _local_sum(self) -> float:
        return float(sum([float(loss) for loss in self._losses]))

    def _local_count(self) -> int:
        return sum(1 if count is None else count for count in self._counts)

    def _loss_to_record(self) -> tuple[float, int]:
        """This rank's part of the sum of losses, and of its divisor.

        In reproducible mode the sum was computed before, in the canonical order; it is rank 0's part.
        """
        if self._loss_of_all is None or not self._losses:
            return self._local_sum(), self._local_count()
        total = self._loss_of_all.result()
        return total if self._plan.rank == 0 else (0.0, 0)
