"""The loops over steps of a training function: what happens between two steps, whoever wrote the loop."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from keepstep import _engine
from keepstep._engine import NextStep
from keepstep._errors import Interruption, KeepstepError
from keepstep.torch.current_run import current
from keepstep.torch.runtime import log_values
from keepstep.torch.sharded import pipelining
from keepstep.torch.step import early_exit
from keepstep.torch.step.open_step import OpenStep

if TYPE_CHECKING:
    from keepstep.torch.runtime.run import Run

T = TypeVar("T")

MAX_LOG_BYTES = 100_000


def interruptible(call: Callable[[], T]) -> T:
    """Runs `call` of the engine. If the generation ends in it, raises `Interruption`."""
    try:
        return call()
    except _engine.Interrupted as interrupted:
        raise Interruption(str(interrupted)) from None


class StepLoops:
    """Of one process. For the main thread.

    Attributes:
        step: the one that is computed, or whose commit was the last thing that its loop did; None outside of a loop.
        first: no loop of this entry has begun.
        saves_at_return: the newest loop did not save its last step.
        raised: called where the function was left by an exception of the user's, before that is told.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._engine = run._engine
        self._useful: tuple[int, list[int]] = (0, [])  # ranks, as the agent was told
        self.clear()

    def clear(self) -> None:
        """The function was left: the next entry starts from its first loop."""
        self.step: OpenStep | None = None
        self.first = True
        self.saves_at_return = False
        self.raised: Callable[[], None] = lambda: None

    # ---- the size of the world ----

    def tell_useful(self, ranks: int, sizes: list[int]) -> None:
        """Each rank needs its own micro-batch, which limits an elastic job's growth. `sizes`: usable world sizes."""
        if self._run.rank == 0 and not self._run.rehearsing and self._useful != (ranks, sizes):
            self._useful = (ranks, sizes)
            self._engine.tell_useful(ranks, sizes)

    @property
    def may_pause(self) -> bool:
        """Whether the world can change."""
        return self._run._session.welcome.elastic and not self._run.rehearsing

    def pause(self) -> None:
        """Waits at the end of a step, with all other ranks, for the world to change."""
        self.step = None
        interruptible(self._engine.pause)

    def _leave_shard(self) -> None:
        """Before the world changes: makes sure that what only this rank holds is on a node that stays."""
        run = self._run
        if run._shards.wanted:
            run._shards.wait(run.version)
            self._engine.leave_shard(run.version)

    def _stop_on_notice(self) -> None:
        """Leaves the loop for good, together with all other ranks. Does not return."""
        run = self._run
        self.end()
        run._saves.save_last()
        run._saves.wait_copied()
        with run.slow("notice"):
            run._hooks.call("notice")
        interruptible(self._engine.stop)  # raises JobEnded, which unwinds the script

    # ---- a loop ----

    def enter(self) -> None:
        """Looks at what is protected, once before each loop: that takes longer than the rest of a commit."""
        run = self._run
        run._registry.list_parameters()
        run._step_commits.enter_loop()
        pipelining.ask_quietly()
        for module in run._registry.modules():
            early_exit.install(module, run._session)
        run._commit.refuse_steps_outside(self._refusing_step)

    def _refusing_step(self) -> int:
        """The step in which an optimizer must not step outside its commit; 0: none."""
        return self._run._step_now if self._run._in_step and not self._run._guards.borrowed else 0

    def begin(self, done: int, until: int) -> None:
        """A loop begins. `done`, `until`: what was committed and where the loop ends, in steps, or in batches of the
        loader of `run.prepare`."""
        run = self._run
        run._guards.outside_of_a_step(self.first)
        self.saves_at_return = False
        first, self.first = self.first, False
        doubt = run._committed.begin_loop(done, run.world_size, until, run.version)
        if doubt and run.rank == 0:
            print(f"keepstep: {doubt}", file=sys.stderr)
        if first:
            run._publications.resume(run.version)
            run._evaluations.resume(run.version)

    def goes_on(self, last_step: int) -> bool:
        """Whether the next step begins. Does not return where the job pauses or stops instead."""
        run = self._run
        if run.rehearsing:
            return run.version < last_step
        follows = interruptible(functools.partial(self._engine.next_step, last_step))
        if follows is NextStep.PAUSE:
            self._leave_shard()
            self.pause()
        if follows is NextStep.STOP:
            self._stop_on_notice()
        return follows is NextStep.STEP

    def open(self, step: OpenStep) -> None:
        """The body of the loop computes `step` from here on."""
        self.step = step
        if step.keeps_gradients:
            self._run._registry.drop_gradients()  # of the step before: no replacement has them
        self._run._step_commits.checks.before(step.number)
        self._run._committed.begin_step()

    def finish_body(self, more: bool) -> None:
        """The loop's body is over, if its step is committed. `more`: the loop may have another one."""
        step = self.step
        if step is None or not step.committed or step.body_over:
            return
        step.body_over = True
        self._run._evaluations.after(step.number)
        if more:
            self._run._guards.changed_late(step.number)

    def left(self, step: OpenStep) -> None:
        """The loop was left by `break`, an exception or a return; after an interruption another loop is under way."""
        if self.step is step:
            self._engine.leave_loop()
            self.saves_at_return = step.committed

    def break_off(self) -> bool:
        """The loop was left by `break` or an exception, so a step that is under way is given up. False if no loop was
        under way, or a fault interrupted it."""
        step = self.step
        if step is None or self._engine.interrupted():
            return False
        self.left(step)
        if not step.committed:
            self._run._registry.drop_gradients()
            self.step = None
        return True

    def end(self) -> None:
        """The loop has no more steps."""
        self._engine.leave_loop()
        self.step = None

    def log(self, number: int, values: dict[str, Any]) -> None:
        """`Step.log`, also during an evaluation."""
        run = self._run
        over = current() is not run or self._engine.finished
        if number != (run._step_now or (0 if over else run.version)):
            raise KeepstepError(f"step {number} is over; call step.log before the next step begins")
        text = log_values.object_text(values)
        if len(text) > MAX_LOG_BYTES:
            raise KeepstepError(f"step.log: {', '.join(values)} take more than {MAX_LOG_BYTES} bytes; log less at once")
        if not run.rehearsing:
            self._engine.log(number, text)
