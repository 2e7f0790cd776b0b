"""`PreparedLoader`: hands out a DataLoader's batches to the ranks, from the last committed one on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from keepstep import _engine
from keepstep._errors import KeepstepError
from keepstep.torch import seeds
from keepstep.torch.prepared.batch_source import BatchSource
from keepstep.torch.step.open_step import CommittedStep, OpenStep

if TYPE_CHECKING:
    from keepstep.torch.runtime.run import Run

_ENDLESS = 1 << 62
_LOOP = 0x6C6F6F70  # of random numbers: not those of the data


class LoaderStep(OpenStep):
    """A step over batches of a `PreparedLoader`: how many follows from where the user's loop calls the optimizer."""

    def __init__(self, loader: PreparedLoader, number: int) -> None:
        super().__init__(loader._run, number, [])
        self._loader = loader
        self.numbers: list[int] = []  # of this rank's batches, so far
        self._forwards = 0
        self.stepped: dict[int, Callable[[], Any]] = {}  # updates that wait for the other optimizers', by number

    @property
    def batches(self) -> int:
        """How many this rank took, so far."""
        return len(self.numbers)

    def take(self, number: int, samples: list[int]) -> None:
        """The loop gets another batch, of these samples."""
        self.numbers.append(number)
        self.sample_ids += samples
        self.run._engine.at(self.number, self.batches)

    def _before_forward(self) -> None:
        self._forwards += 1
        if self.stepped:
            raise KeepstepError(
                f"step {self.number}: a forward between two optimizers' step(): run.prepare updates everything at "
                "once, after all ranks voted, so this forward would see the first update only after the step. Call "
                "the optimizers' step() one after the other, or write the loop over run.steps"
            )

    def _check_complete(self) -> None:
        accumulation = self._loader.accumulation
        if accumulation not in (None, self.batches):
            raise KeepstepError(
                f"step {self.number}: the optimizer steps after {self.batches} of this rank's batches, and with this "
                f"global_batch a step has {accumulation} on each of {self.run.world_size} ranks. Step where "
                "`loader.ends_step` is true, and divide the loss by `loader.accumulation`"
            )
        if 0 < self._forwards < self.batches:  # none is seen of a compiled model
            raise KeepstepError(
                f"step {self.number}: the loop took {self.batches} batches and computed {self._forwards}. After a "
                "fault it would begin after all that it took. If something fetches batches before they are used "
                "(a prefetcher around the loader), leave it out: the DataLoader's num_workers= loads ahead"
            )

    def _move_position(self) -> None:
        self.run._committed.position = self._loader._taken


class SummedLossStep(LoaderStep):
    """A step whose loss is the sum of its batches' losses: a trainer has divided these already.

    Attributes:
        losses: of this rank's batches.
    """

    def __init__(self, loader: PreparedLoader, number: int) -> None:
        super().__init__(loader, number)
        self.losses: list[torch.Tensor] = []

    @property
    def has_loss(self) -> bool:
        return bool(self.losses)

    def _local_loss(self) -> tuple[float, int]:
        return float(sum(float(loss) for loss in self.losses)), 1


class PreparedLoader:
    """This rank's batches of the epoch that follows, from the first one that no committed step has used.

    A round is one batch for each rank: rank r gets batch ``r`` of the next `world_size` batches of the DataLoader. The
    last round of an epoch is filled with the first batches of the next one, which that does not yield again; so no
    batch is dropped, and none is used twice. With a global batch, the last step of an epoch is filled in this way. The
    k-th iteration of an entry of the training function is epoch k: it
    yields nothing if that epoch is over, so ``for epoch in range(n)`` goes on where it was. `set_epoch` chooses
    another.

    Leaving an epoch by `break` skips the rest of it; gradients of batches that no step has used are dropped.

    Attributes:
        batches_per_epoch: of this rank, if none is used yet.
        accumulation: this rank's batches of each step, if the global batch is given; else None, the loop decides.
    """

    def __init__(self, run: Run, source: BatchSource, last_step: int | None, per_step: int | None = None) -> None:
        """`per_step`: batches of each step over all ranks, which divide them evenly; None: the loop decides."""
        self._run = run
        self._source = source
        self._size = run.world_size  # of a round
        self._unit = per_step or self._size  # an epoch has a whole number of these
        self.accumulation = None if per_step is None else per_step // self._size
        self._last_step = _ENDLESS if last_step is None else last_step
        if run._session.witness is not None:
            self._last_step = run._session.witness.bounded(self._last_step)
        begin: int = run._committed.position
        self._base = begin % self._unit  # where units begin; not at 0 only in a job that began with other sizes
        self._taken = begin  # batches of all ranks that are handed out
        self._coming = 0  # the epoch that the next iteration is
        self._remaining: int | None = None  # batches of the current iteration
        self._entered: int | None = None  # the epoch that `epochs` yielded
        self._iteration = 0
        self._counted: str | None = None  # a key in the Store that says where a loop was left
        self.batches_per_epoch = self._rounds(0, self._end_of(0))
        run._loops.raised = self._was_no_break

    # ---- what a loop may ask ----

    def __len__(self) -> int:
        """The batches that the current iteration yields in all; before one, those of the next."""
        if self._remaining is not None:
            return self._remaining
        return min(self._rounds(self._begin_of(self._coming), self._end_of(self._coming)), _ENDLESS)

    @property
    def epoch(self) -> int:
        """The epoch of the next batch that no committed step has used, from 0."""
        return self._place(self._run._committed.position)[0]

    @property
    def step(self) -> int:
        """The step that the newest batch belongs to, from 1; outside of the loop the last committed one."""
        step = self._step
        return self._run.version if step is None else step.number

    @property
    def ends_step(self) -> bool:
        """Whether the newest batch is the last one of its step; for loops whose global batch is given."""
        if self.accumulation is None:
            raise KeepstepError("ends_step: the loop decides where a step ends, unless run.prepare gets global_batch=")
        return self._step is not None and self._step.batches == self.accumulation

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is `epoch`. Samplers are told of their epoch without it."""
        if epoch < 0:
            raise KeepstepError(f"set_epoch({epoch}): epochs count from 0")
        self._coming = epoch

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs up to `count` that are not over, each with all that the loop does in it.

        ``for epoch in loader.epochs(10): for batch in loader: ...; evaluate()``: if a fault interrupts what follows an
        epoch's batches, it is done again, and earlier epochs are not entered again.
        """
        first = self.epoch
        if first and self._taken == self._end_of(first - 1) and not self._is_over(first - 1):
            first -= 1
        elif self._is_over(first) and (not self._run._committed.position or self._was_left(first)):
            first += 1  # `break` left it; otherwise its last batches belong to a step that is redone
        for epoch in range(first, count):
            self.set_epoch(epoch)
            if len(self):  # after a restart of the job it may be known from before
                self._run._session.store("delete", self._over(epoch), ends_with_generation=False)
            self._entered = epoch
            yield epoch
            self._entered = None
            if not self._run.rehearsing:
                self._run._session.through(self._over(epoch))

    def log(self, **values: Any) -> None:
        """Publishes `values` with the step of the newest batch, once per committed step (`Step.log`)."""
        step = self._step
        if step is None:
            raise KeepstepError(
                "log: no step is under way; call it in the loop over the loader that run.prepare returned"
            )
        step.log(**values)

    def _log_numbers(self, values: dict[str, Any]) -> None:
        """Publishes those of `values` that are numbers, with the newest step, also after its commit."""
        step = self._step or CommittedStep(self._run, self._run.version)
        if step.number and not self._run.rehearsing:
            step._log_numbers(values)

    # ---- arithmetic ----

    def _rounds(self, begin: int, end: int) -> int:
        return max(0, math.ceil((end - begin) / self._size))

    def _end_of(self, epoch: int) -> int:
        """The first batch that epoch `epoch` does not take any more."""
        whole = (epoch + 1) * self._source.length - self._base
        return self._base + math.ceil(whole / self._unit) * self._unit

    def _begin_of(self, epoch: int) -> int:
        """The first batch that an iteration of `epoch` would hand out now."""
        return max(self._taken, self._end_of(epoch - 1) if epoch else 0)

    def _place(self, batch: int) -> tuple[int, int]:
        """The epoch that `batch` begins or continues, and how many batches this rank had in it before."""
        epoch = batch // self._source.length
        epoch += batch >= self._end_of(epoch)
        begin = self._end_of(epoch - 1) if epoch else self._base
        return epoch, self._rounds(begin, batch)

    def _begin_at(self, epoch: int, batches: int) -> None:
        """Training begins there: `batches` of this rank's in `epoch` count as used."""
        begin = self._end_of(epoch - 1) if epoch else self._base
        self._taken = self._run._committed.position = begin + batches * self._size

    def _epochs_ending(self) -> int:
        """How many epochs are over with the commit of what is handed out."""
        epoch = self.epoch
        while self._end_of(epoch) <= self._taken:
            epoch += 1
        return epoch - self.epoch

    @property
    def _step(self) -> LoaderStep | None:
        step = self._run._loops.step
        return step if isinstance(step, LoaderStep) else None

    # ---- iteration ----

    def __iter__(self) -> Iterator[Any]:
        epoch, self._coming = self._coming, self._coming + 1
        self._counted = None
        self._iteration += 1
        self._remaining = self._rounds(self._begin_of(epoch), self._end_of(epoch))
        return self._batches(epoch, self._iteration)

    def _batches(self, epoch: int, iteration: int) -> Iterator[Any]:
        self._run._loops.finish_body(more=True)
        begin, end = self._begin_of(epoch), self._end_of(epoch)
        self._begin_loop(end)
        if begin < end and self._was_left(epoch):
            self._taken = begin = end
        count = self._rounds(begin, end)
        self._remaining = count
        rounds = ((first, first + self._run.rank) for first in range(begin, end, self._size))
        batches = self._source.batches(rounds, self._size) if count else iter(())
        try:
            for first in range(begin, end, self._size):
                if iteration != self._iteration:
                    raise KeepstepError("the loader of run.prepare is iterated anew in the middle of an iteration")
                step = self._open_step()
                if step is None:
                    break
                number = first + self._run.rank
                self._run._check_interrupted()
                with step.data_waits:
                    batch = next(batches)
                self._taken = first + self._size
                step.take(number, self._source.samples(number))
                self._seed(number)
                yield batch
        except GeneratorExit:
            self._leave(epoch, end)
            raise
        self._remaining = None
        loops = self._run._loops
        loops.finish_body(more=self._run.version < self._last_step)
        if (step := self._step) is None or step.committed:
            loops.end()
            loops.saves_at_return = self._run.version > 0
        else:
            self._run._engine.leave_loop()  # the step goes on in the next epoch

    def _begin_loop(self, end: int) -> None:
        loops = self._run._loops
        if self._step is not None and not self._step.committed:
            self._run._committed.continue_loop(end)
            return
        self._run._loops.enter()
        if not self._run.rehearsing:
            loops.begin(self._run._committed.position, end)
        else:
            self._run._session.rehearsal.begin_steps()

    def _open_step(self) -> LoaderStep | None:
        """The step that the next batch belongs to; None if there is none any more."""
        step = self._step
        if step is not None and not step.committed:
            return step
        run = self._run
        run._loops.finish_body(more=run.version < self._last_step)
        if not run._loops.goes_on(self._last_step):
            return None
        number = run.version + 1
        run._session.injector.at("between", number)
        step = self._new_step(number)
        run._loops.open(step)
        return step

    def _new_step(self, number: int) -> LoaderStep:
        return LoaderStep(self, number)

    def _seed(self, number: int) -> None:
        """What the loop draws for a batch follows from the seed and the batch's number, whichever rank has it."""
        seeds.seed_all(_engine.mix_seed(self._run.seed, _LOOP, number))

    # ---- what is over, for later entries, too ----

    def _may_evaluate(self) -> bool:
        """Whether what the loop does now is done again if a fault interrupts it, and otherwise is not."""
        run = self._run
        if run._evaluations.step:
            return True
        if self._entered is None or self._remaining is not None:
            return False
        return self._taken >= self._end_of(self._entered) or run.version >= self._last_step

    def _leave(self, epoch: int, end: int) -> None:
        """The loop was left: by `break`, or by an exception, after which this loader is not used any more."""
        run = self._run
        self._remaining = None
        if self._step is None or not run._loops.break_off():
            return
        self._taken = end
        if not run.rehearsing:
            self._counted = self._left(epoch)
            run._session.through(self._counted)

    def _left(self, epoch: int) -> str:
        """Says in the Store that the loop over `epoch` was left by `break` where it stands."""
        return self._run._session.key(f"left/{epoch}/{self._run._committed.position}")

    def _over(self, epoch: int) -> str:
        """Says in the Store that `epoch` is over, with what follows its batches (`epochs`)."""
        return self._run._session.key(f"over/{epoch}")

    def _was_no_break(self) -> None:
        """The loop was left by an exception: what `_leave` said is not so."""
        if self._counted is not None:
            self._run._session.not_through(self._counted)

    def _was_left(self, epoch: int) -> bool:
        return self._run._committed.position > 0 and self._holds(self._left(epoch))

    def _is_over(self, epoch: int) -> bool:
        return self._holds(self._over(epoch))

    def _holds(self, key: str) -> bool:
        """Whether all ranks said so in an earlier entry."""
        run = self._run
        if run.rehearsing or run.generation == 1:
            return False
        return run._session.is_over(key)

    # ---- the commit ----

    def _open(self, what: str) -> LoaderStep:
        step = self._step
        if step is None or step.committed:
            raise KeepstepError(
                f"{what}: no batch of the loader that run.prepare returned belongs to this update; take one first, and "
                "step once for what was taken"
            )
        return step

    def _commit(self, update: tuple[Callable[[], Any], ...], communicates: bool, veto: Any) -> None:
        self._run._step_commits.commit(self._open("step()"), update, communicates, veto)
