"""What ``run.evaluate`` registered: called after committed steps, and again where a call was interrupted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from keepstep._errors import KeepstepError
from keepstep.torch.step.open_step import CommittedStep

if TYPE_CHECKING:
    from keepstep.torch.runtime.run import Run


class Evaluations:
    """Of one entry of the training function. `step`: whose evaluation runs now; 0: none."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._session = run._session
        self._functions: list[tuple[Callable[[CommittedStep], Any], int]] = []
        self.step = 0

    def add(self, function: Callable[[CommittedStep], Any], every: int) -> None:
        if every < 1:
            raise KeepstepError(f"run.evaluate: every_steps={every}; at least 1")
        if not self._run._loops.first:
            raise KeepstepError("run.evaluate comes too late: call it in every entry, before run.steps")
        self._functions.append((function, every))

    def clear(self) -> None:
        """The function was left; the next entry registers its own."""
        self._functions.clear()
        self.step = 0

    def after(self, step: int) -> None:
        """All ranks committed `step`."""
        for index, (function, every) in enumerate(self._functions):
            if step % every == 0:
                # A restart of the job comes to this step once more.
                self._session.store("delete", self._key(index, step), ends_with_generation=False)
                self._call(index, function, step)
                self._session.store("delete", self._key(index, step - every), ends_with_generation=False)

    def resume(self, step: int) -> None:
        """An entry begins after `step`: calls that did not end on all ranks are made again, on all."""
        if step == 0 or self._run.generation == 1:
            return
        for index, (function, every) in enumerate(self._functions):
            if step % every == 0 and not self._session.is_over(self._key(index, step)):
                self._call(index, function, step)

    def _call(self, index: int, function: Callable[[CommittedStep], Any], step: int) -> None:
        self.step = step
        self._run._engine.at(step + 1, 0)  # as after a commit: a rank that hangs here is found
        with self._run._committed.modes_kept():
            function(CommittedStep(self._run, step))
        self.step = 0
        self._session.through(self._key(index, step))

    def _key(self, index: int, step: int) -> str:
        return self._session.key(f"evaluated/{index}/{step}")
