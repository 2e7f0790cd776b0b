"""Optimizers and a scaler whose step is the commit: all ranks vote, then everything is updated at once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from keepstep._errors import KeepstepError
from keepstep.torch.prepared.plateau import PreparedPlateau
from keepstep.torch.state.registry import is_partitioned, parameters_of

if TYPE_CHECKING:
    from keepstep.torch.prepared.prepared_loader import PreparedLoader


class Updates:
    """What a step of a prepared loop updates: its optimizers, then its schedules.

    Attributes:
        optimizers: the protected ones, in the order in which they are updated.
        waits_for_scaler: whether a scaler's ``update()`` commits, and not the last optimizer's step.
    """

    def __init__(
        self,
        loader: PreparedLoader,
        optimizers: list[Optimizer],
        schedules: list[Any],
        epoch_schedules: list[Any],
        veto: Callable[[Any], str | bool | None] | None,
        waits_for_scaler: bool,
    ) -> None:
        self._plateaus = [each for each in schedules if isinstance(each, PreparedPlateau)]
        self._schedules = [each for each in schedules if not isinstance(each, PreparedPlateau)]
        for each in [*self._schedules, *epoch_schedules]:
            if isinstance(each, ReduceLROnPlateau):
                raise KeepstepError(
                    "run.prepare: ReduceLROnPlateau moves after an evaluation. Pass it as plateau=, and step what "
                    "comes back: model, optimizer, loader, plateau = run.prepare(..., plateau=state.plateau), then "
                    "plateau.step(metric)"
                )
        self.optimizers = optimizers
        self.waits_for_scaler = waits_for_scaler
        self._loader = loader
        self._epoch_schedules = epoch_schedules
        self._veto = veto
        self._communicates = any(isinstance(each, LBFGS) or is_partitioned(each) for each in optimizers)

    def stepped(self, optimizer: Optimizer, update: Callable[[], Any]) -> None:
        """The loop wants `update` of `optimizer`; commits it together with the others', once all have stepped."""
        step = self._loader._open("optimizer.step()")
        index = next(i for i, each in enumerate(self.optimizers) if each is optimizer)
        if index in step.stepped:
            missing = [type(each).__name__ for i, each in enumerate(self.optimizers) if i not in step.stepped]
            raise KeepstepError(
                f"step {step.number}: {type(optimizer).__name__} steps again before "
                f"{', '.join(missing) or 'scaler.update()'} did. In a loop of run.prepare each step updates "
                "everything that was prepared; where that does not fit, write the loop over run.steps"
            )
        step.stepped[index] = update
        if len(step.stepped) == len(self.optimizers) and not self.waits_for_scaler:
            self.commit()

    def commit(self, *last: Callable[[], Any]) -> None:
        """Commits what has stepped. `last`: runs after the optimizers."""
        step = self._loader._open("scaler.update()")
        updates = [move for each in self._plateaus for move in each.moves()]
        updates += [step.stepped[index] for index in sorted(step.stepped)]
        schedules = [*self._schedules]
        for _ in range(self._loader._epochs_ending()):
            schedules += self._epoch_schedules
        step.stepped.clear()
        moves = [_move_of(each) for each in schedules]
        self._loader._commit((*updates, *last, *moves), self._communicates, self._veto)
        if step.vetoed:
            for plateau in self._plateaus:
                plateau.vetoed()


@functools.cache
def _needs_closure(step: Callable[..., Any]) -> bool:
    """Whether it cannot be called without one. `step`: the class's own, since LR schedulers replace the bound one."""
    _, *parameters = inspect.signature(step).parameters.values()
    return any(
        each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in parameters
    )


class _Computed:
    """The closure of a step whose gradients are there, for an optimizer that insists on one and calls it first."""

    def __init__(self, optimizer: Optimizer, result: Any) -> None:
        self._optimizer = optimizer
        self._result = result
        self._then = self._now()

    def _now(self) -> list[tuple[int, int]]:
        return [(each._version, id(each.grad)) for each in parameters_of(self._optimizer)]

    def __call__(self) -> Any:
        if self._now() != self._then:
            kind = type(self._optimizer).__name__
            raise KeepstepError(
                f"{kind}.step computes gradients again after it has changed parameters, which a prepared loop cannot "
                "do: all ranks have voted by then. Write the loop over run.steps, with step.commit(lambda: "
                "optimizer.step(closure), communicates=True)"
            )
        return self._result


class PreparedOptimizer(Optimizer):
    """A protected optimizer; its ``step()`` commits the step of training. Everything else is the optimizer's own."""

    _optimizer: Optimizer
    _updates: Updates

    def __init__(self, optimizer: Optimizer, updates: Updates) -> None:
        self.__dict__.update(_optimizer=optimizer, _updates=updates)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Lets all ranks vote, then updates. With `closure`, calls it first, and returns what it returned."""
        inner = self._optimizer
        result = None
        update: Callable[[], Any] = inner.step
        if closure is None and _needs_closure(type(inner).step):
            raise KeepstepError(f"{type(inner).__name__}.step needs a closure")
        if isinstance(inner, LBFGS):
            update = functools.partial(inner.step, closure)
        elif closure is not None:
            with torch.enable_grad():
                result = closure()
            if _needs_closure(type(inner).step):
                update = functools.partial(inner.step, _Computed(inner, result))
        self._updates.stepped(inner, update)
        return result

    def __getattr__(self, name: str) -> Any:
        if name == "_optimizer":  # of a copy that is not made yet
            raise AttributeError(name)
        return getattr(self._optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """A scheduler hooks in by setting ``step``; all that is the optimizer's goes to it."""
        if name == "step":
            self.__dict__[name] = value
        else:
            setattr(self._optimizer, name, value)

    def __repr__(self) -> str:
        return f"PreparedOptimizer({self._optimizer!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        raise KeepstepError("a prepared optimizer cannot be pickled or copied; use its state_dict()")

    # What `Optimizer` itself has, so `__getattr__` is not asked.

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return self._optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._optimizer.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self._optimizer.add_param_group(param_group)


class PreparedSchedule(LRScheduler):
    """A protected schedule that moves in the commit (`move`); its ``step()`` only ends what `get_last_lr` shows.

    Attributes:
        shown: the learning rates of the newest step, until a loop that logs them after the update calls ``step()``.
    """

    def __init__(self, schedule: LRScheduler) -> None:
        self.__dict__.update(_schedule=schedule, shown=None)

    def move(self) -> None:
        """Part of the commit."""
        self.__dict__["shown"] = self._schedule.get_last_lr()
        self._schedule.step()

    def step(self, epoch: int | None = None) -> None:
        self.__dict__["shown"] = None

    def get_last_lr(self) -> list[Any]:
        shown: list[Any] | None = self.shown
        return self._schedule.get_last_lr() if shown is None else shown

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self._schedule.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._schedule.load_state_dict(state_dict)

    def __getattr__(self, name: str) -> Any:
        if name == "_schedule":
            raise AttributeError(name)
        return getattr(self._schedule, name)


class PreparedScaler:
    """A protected GradScaler; its ``update()`` commits, because ``step()`` may skip what the gradients spoil."""

    def __init__(self, scaler: torch.amp.GradScaler, updates: Updates) -> None:
        self._scaler = scaler
        self._updates = updates

    def unscale_(self, optimizer: Optimizer) -> None:
        self._scaler.unscale_(_inner(optimizer))

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        """Has `optimizer` step in the commit, as ``GradScaler.step`` does; `update` commits."""
        inner = _inner(optimizer)
        self._updates.stepped(inner, functools.partial(self._scaler.step, inner, *args, **kwargs))

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """Lets all ranks vote, then updates everything that stepped, and the scale."""
        self._updates.commit(functools.partial(self._scaler.update, new_scale))

    def __getattr__(self, name: str) -> Any:
        if name == "_scaler":
            raise AttributeError(name)
        return getattr(self._scaler, name)


def _move_of(schedule: Any) -> Callable[[], Any]:
    for name in ("move", "step"):
        if hasattr(schedule, name):
            move: Callable[[], Any] = getattr(schedule, name)
            return move
    moves: Callable[[], Any] = schedule
    return moves


def _inner(optimizer: Optimizer) -> Optimizer:
    return optimizer._optimizer if isinstance(optimizer, PreparedOptimizer) else optimizer
