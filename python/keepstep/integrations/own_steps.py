"""Steps of a training loop that has batches, losses and a position of its own: it says where a step begins and ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from keepstep import KeepstepError, _engine
from keepstep.torch import seeds
from keepstep.torch.step.open_step import CommittedStep, OpenStep

if TYPE_CHECKING:
    from keepstep.torch.runtime.run import Run


class OwnStep(OpenStep):
    """A step of such a loop.

    Attributes:
        recorded: this rank's part of the sum of losses, and of its divisor; set before the commit.
    """

    def __init__(self, run: Run, number: int) -> None:
        super().__init__(run, number, [])
        self.recorded: tuple[float, int] = (0.0, 0)

    @property
    def has_loss(self) -> bool:
        return self.recorded[1] > 0

    def _local_loss(self) -> tuple[float, int]:
        return self.recorded


class OwnSteps:
    """The steps of one entry, up to `last_step`. For the main thread; every rank calls the same methods."""

    def __init__(self, run: Run, last_step: int) -> None:
        self._run = run
        self._last = last_step if run._session.witness is None else run._session.witness.bounded(last_step)
        self._batches = 0
        run._loops.enter()
        run._loops.begin(run.version, last_step)

    @property
    def step(self) -> OwnStep:
        """The step that is under way, or was committed last."""
        step = self._run._loops.step
        if not isinstance(step, OwnStep):
            raise KeepstepError("no step is under way: the loop that this integration knows did not begin one")
        return step

    def open(self) -> bool:
        """The next step begins. False where there is none any more."""
        run = self._run
        run._loops.finish_body(more=True)
        if not run._loops.goes_on(self._last):
            return False
        number = run.version + 1
        run._session.injector.at("between", number)
        run._loops.open(OwnStep(run, number))
        self._batches = 0
        seeds.seed_all(_engine.mix_seed(run.seed, number, run.rank))
        return True

    def batch(self) -> None:
        """The next micro-batch of the step begins."""
        self._run._check_interrupted()
        self._batches += 1
        self._run._engine.at(self.step.number, self._batches)

    def commit(self, update: Callable[[], Any], communicates: bool, loss: tuple[float, int]) -> None:
        """All ranks vote, then `update` runs. `loss`: see `OwnStep.recorded`."""
        step = self.step
        step.recorded = loss
        self._run._step_commits.commit(step, (update,), communicates, None)

    def close(self) -> None:
        """The loop is over, on all ranks."""
        run = self._run
        step = run._loops.step
        if step is not None and not step.committed:  # it ran out of data
            self.left()
            return
        run._loops.finish_body(more=False)
        run._loops.end()

    def left(self) -> None:
        """The loop was left by `break` or an exception."""
        self._run._loops.break_off()

    def check(self) -> None:
        """Raises if the generation ended: collectives were cut short, and what they returned must not be used."""
        self._run._check_interrupted()

    def log(self, values: dict[str, Any]) -> None:
        """Publishes those of `values` that are numbers with the last committed step."""
        CommittedStep(self._run, self._run.version)._log_numbers(values)
