"""One step of `run.steps`: this rank's micro-batches, the weighted backward, the loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from keepstep import _engine
from keepstep._errors import KeepstepError
from keepstep.torch import seeds
from keepstep.torch.data_parallel import replicas
from keepstep.torch.reduction.global_loss import GlobalLoss
from keepstep.torch.step.batch_plan import BatchPlan
from keepstep.torch.step.open_step import OpenStep

if TYPE_CHECKING:
    from keepstep.torch.runtime.run import Run


class Step(OpenStep):
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

    keeps_gradients = False

    def __init__(self, run: Run, plan: BatchPlan, number: int, position: torch.Tensor | None) -> None:
        super().__init__(run, number, plan.samples(number))
        self._plan = plan
        self._position = position
        self.global_batch = plan.global_batch
        self._micros = plan.micros
        self._losses: list[torch.Tensor] = []
        self._counts: list[int | None] = []
        self._replicas = replicas.reproducible()
        self.reproducible = bool(self._replicas)
        self._loss_of_all = GlobalLoss(plan.micro_batches, self._micros) if self.reproducible else None
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
        self.run._step_commits.commit(self, update, communicates, veto)

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
    def has_loss(self) -> bool:
        return bool(self._losses)

    def _check_complete(self) -> None:
        self._check_done(len(self._micros))

    def _local_loss(self) -> tuple[float, int]:
        return float(sum([float(loss) for loss in self._losses])), self._local_count()

    def _local_count(self) -> int:
        return sum(1 if count is None else count for count in self._counts)

    def _move_position(self) -> None:
        if self._position is not None:
            self._position += self.global_batch

    def _loss_to_record(self) -> tuple[float, int]:
        """This rank's part of the sum of losses, and of its divisor.

        In reproducible mode the sum was computed before, in the canonical order; it is rank 0's part.
        """
        if self._loss_of_all is None or not self._losses:
            return self._local_loss()
        total = self._loss_of_all.result()
        return total if self._plan.rank == 0 else (0.0, 0)
