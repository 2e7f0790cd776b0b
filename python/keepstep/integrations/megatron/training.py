"""`recoverable`: a training loop over Megatron-core that loses no step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, overload

from megatron.core.tensor_parallel import random as megatron_random

import keepstep
from keepstep import KeepstepError, _engine
from keepstep._session import session_or_none
from keepstep.integrations.megatron import parts
from keepstep.integrations.megatron.groups import shared_groups
from keepstep.integrations.own_steps import OwnSteps
from keepstep.torch.runtime.run import Run

R = TypeVar("R")
Build = Callable[[], tuple[Any, Any, Any]]


@overload
def recoverable(build: Build, /) -> Recoverable: ...


@overload
def recoverable(*, replicated: bool) -> Callable[[Build], Recoverable]: ...


def recoverable(build: Build | None = None, /, *, replicated: bool = False) -> Any:
    """Decorates the function that makes the model (in Megatron's DDP; or a list of these), its optimizer and its
    scheduler (or None), and returns the three. It is called once in each process, when that has a rank. The world's
    process group exists then; collectives are not carried out in it.

    `replicated`: every rank holds all of the model and of the optimizer's state. Then nothing is copied while training
    goes on, and a replacement gets the state from a peer. Otherwise each rank's part is copied in each step.
    """
    if build is None:
        return functools.partial(Recoverable, replicated=replicated)
    return Recoverable(build, replicated)


class Recoverable:
    """What `recoverable` made of a build function. Without ``keepstep run`` nothing is recovered, and nothing changes.

    Attributes:
        run: keepstep's, while the training function runs.
    """

    def __init__(self, build: Build, replicated: bool = False) -> None:
        self._build = build
        self._replicated = replicated
        self.run: Run | None = None
        self._state: keepstep.State | None = None
        self._increment = 1

    def training(self, function: Callable[..., R]) -> Callable[[], R]:
        """Decorates the function with the loop, which gets what ``build`` returned. After a fault it is entered again,
        in the same process. It uses `iterations`."""
        session = session_or_none()
        if session is None:
            return lambda: function(*self._build())
        if session.welcome.elastic:
            raise KeepstepError(
                "recoverable: an elastic job (--nnodes MIN:MAX) changes its ranks, which Megatron's process groups "
                "cannot follow; start it with a fixed number of nodes"
            )

        @keepstep.recoverable(rehearse=False)
        def megatron_train(run: Run) -> R:
            self._enter(run)
            try:
                assert self._state is not None
                state = self._state
                return function(self._model(state), state.megatron_optimizer, state.megatron_scheduler)
            finally:
                self._leave()

        return functools.update_wrapper(megatron_train, function)

    def iterations(self, count: int, increment: int = 1) -> Iterator[int]:
        """The numbers of the iterations up to `count` that are not committed, from 0.

        In each the loop calls ``optimizer.step()`` once, which is the commit; with it the scheduler moves by
        `increment`, if the update was made. Its own ``step`` does nothing.
        """
        self._increment = increment
        run = self.run
        if run is None:
            yield from range(count)
            return
        steps = OwnSteps(run, count)
        self._steps = steps
        while steps.open():
            self._seed(run)
            steps.batch()
            number = steps.step.number
            try:
                yield number - 1
            except GeneratorExit:
                steps.left()
                raise
            if not steps.step.committed:
                raise KeepstepError(f"iteration {number - 1} ended without optimizer.step(); each needs one")
        steps.close()

    def log(self, **values: Any) -> None:
        """Publishes `values` with the step that is under way, or was just committed (`Step.log`)."""
        if self.run is not None:
            self._steps.step.log(**values)

    # ---- an entry ----

    def _enter(self, run: Run) -> None:
        self.run = run
        state = run.setup(self._make, sharded=not self._replicated, with_rank=True)
        self._state = state
        run._form("megatron")
        parts.forget_step(state.chunks)
        state.megatron_optimizer.step = self._commit
        if state.megatron_scheduler is not None:
            state.megatron_scheduler.step = lambda increment=0: None  # part of the commit

    def _leave(self) -> None:
        state, self.run = self._state, None
        if state is not None:
            for each in (state.megatron_optimizer, state.megatron_scheduler):
                if each is not None:
                    vars(each).pop("step", None)

    def _make(self) -> keepstep.State:
        with shared_groups():
            model, optimizer, scheduler = self._build()
        self._one = not isinstance(model, list)
        chunks = [model] if self._one else model
        parts.require_recoverable(chunks, optimizer, self._replicated)
        return parts.state(chunks, optimizer, scheduler)

    def _model(self, state: keepstep.State) -> Any:
        return state.chunks[0] if self._one else state.chunks

    def _seed(self, run: Run) -> None:
        """Megatron's random numbers, which differ between the ranks that share a layer, follow from the step, too."""
        if megatron_random.get_cuda_rng_tracker().is_initialized():
            megatron_random.model_parallel_cuda_manual_seed(_engine.mix_seed(run.seed, run.version) % (1 << 31))

    def _commit(self) -> Any:
        """In place of ``optimizer.step()``; returns what that returns."""
        state = self._state
        assert state is not None
        optimizer, scheduler = state.megatron_optimizer, state.megatron_scheduler
        found: list[Any] = []

        def update() -> None:
            found[:] = [type(optimizer).step(optimizer)]
            if scheduler is not None and found[0][0]:
                type(scheduler).step(scheduler, increment=self._increment)

        # It clips, and gathers parameters: a collective each.
        self._steps.commit(update, communicates=True, loss=(0.0, 0))
        return found[0]
