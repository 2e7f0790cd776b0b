"""A step as keepstep sees it, whoever wrote the loop that computes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keepstep.torch.data.data_waits import DataWaits

if TYPE_CHECKING:
    from keepstep.torch.runtime.run import Run


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
        self.run._loops.log(self.number, values)

    def _log_numbers(self, values: dict[str, Any]) -> None:
        """Those of `values` that are numbers."""
        self.log(**{name: value for name, value in values.items() if isinstance(value, int | float)})


class OpenStep(CommittedStep):
    """A step from its first batch on: what its commit has to know of it.

    Attributes:
        sample_ids: this rank's samples in this step, in the order of its micro-batches.
        data_waits: how long this step's batches waited for data.
        vetoed: after the commit: whether a rank vetoed the update, so nothing changed (``step.commit(..., veto=...)``).
        voted: whether this rank has voted on it.
        committed: whether all ranks have committed it.
        keeps_gradients: whether the loop still sees its gradients after the commit, until the next step begins.
    """

    keeps_gradients = True

    def __init__(self, run: Run, number: int, sample_ids: list[int]) -> None:
        super().__init__(run, number)
        self.sample_ids = sample_ids
        self.data_waits = DataWaits()
        self.vetoed = False
        self.voted = False
        self.committed = False
        self.body_over = False  # what a loop does between two steps is done
        self._global_loss: float | None = None

    @property
    def loss(self) -> float:
        """The mean loss of this rank's micro-batches so far; after the commit that of all ranks, the same on each."""
        if self._global_loss is not None:
            return self._global_loss
        total, count = self._local_loss()
        return total / count if count else float("nan")

    @property
    def has_loss(self) -> bool:
        """Whether this rank knows a loss of it."""
        return False

    def _before_forward(self) -> None:
        """A protected module's forward begins in it, with gradients."""

    def _check_complete(self) -> None:
        """Raises if the step cannot be committed yet."""

    def _local_loss(self) -> tuple[float, int]:
        """This rank's sum of losses so far, and its divisor."""
        return 0.0, 0

    def _loss_to_record(self) -> tuple[float, int]:
        """This rank's part of the sum of losses, and of its divisor."""
        return self._local_loss()

    def _move_position(self) -> None:
        """Runs with the update, so a redone step takes the same samples again, and a committed one never does."""
