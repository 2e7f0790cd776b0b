"""ReduceLROnPlateau in a loop whose ``optimizer.step()`` is the commit.

Such a schedule moves after an evaluation, between two commits, where nothing may change that is protected. So its
``step(metric)`` keeps the metric, and the next commit begins with the move. The rate changes before the same update as
without keepstep; in between only what reads it sees the old one.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from keepstep._errors import KeepstepError
from keepstep.torch.distributed import agreement

if TYPE_CHECKING:
    from keepstep.torch.runtime.run import Run

_SAVED = "keepstep_metric"  # in a checkpoint: was given, and has moved nothing yet
# Metrics that each schedule was given, by the version they were given after. They outlive an entry, in the survivors.
_given: weakref.WeakKeyDictionary[ReduceLROnPlateau, dict[int, float]] = weakref.WeakKeyDictionary()


class PreparedPlateau(ReduceLROnPlateau):
    """A protected schedule that moves when the next commit begins.

    All ranks call ``step`` with the same metric, at most once between two commits.
    """

    _schedule: ReduceLROnPlateau
    _run: Run | None
    _stepped: int | None  # in this entry, after that version

    def __init__(self, schedule: ReduceLROnPlateau) -> None:
        self.__dict__.update(_schedule=schedule, _run=None, _stepped=None, shown=None)
        given = _given.setdefault(schedule, {})
        if _SAVED in vars(schedule):  # a checkpoint was loaded into the schedule itself
            given[0] = vars(schedule).pop(_SAVED)

    @property
    def scheduler(self) -> ReduceLROnPlateau:
        """The protected one."""
        return self._schedule

    def enter(self, run: Run) -> PreparedPlateau:
        """An entry begins, on all ranks, which have a process group: a metric that any of them was given counts."""
        self.__dict__.update(_run=run, _stepped=None)
        if run.rehearsing:
            return self
        given = _given[self._schedule]
        known = given.get(run.version)
        numbers = agreement.numbers_of_ranks(float(known is not None), 0.0 if known is None else known)
        run._check_interrupted()
        for knows, metric in numbers:
            if knows:
                given[run.version] = metric
                break
        return self

    def moves(self) -> list[Callable[[], Any]]:
        """What the commit that follows begins with."""
        assert self._run is not None
        metric = _given[self._schedule].get(self._run.version)
        return [] if metric is None else [functools.partial(self._schedule.step, metric)]

    def step(self, metrics: Any, epoch: int | None = None) -> None:  # type: ignore[override]
        run = self._run
        if run is None:
            raise KeepstepError("ReduceLROnPlateau.step: no training is under way that it could move in")
        if run.rehearsing:
            return
        if self._stepped == run.version:
            raise KeepstepError(
                f"ReduceLROnPlateau.step is called twice after step {run.version}: it moves once, when the next step "
                "is committed; call it once for each evaluation"
            )
        metric = float(metrics)
        numbers = [number for [number] in agreement.numbers_of_ranks(metric)]
        run._check_interrupted()
        if len(set(map(str, numbers))) > 1:
            named = ", ".join(f"{number:g}" for number in numbers[:8])
            raise KeepstepError(
                f"ReduceLROnPlateau.step: the metric differs between ranks ({named}), so their learning rates would; "
                "average it over the ranks first (torch.distributed.all_reduce; in Lightning self.log(..., "
                "sync_dist=True))"
            )
        given = _given[self._schedule]
        given[run.version] = metric
        for version in [each for each in given if each < run.version - 1]:  # sharded state may go back by one
            del given[version]
        self.__dict__["_stepped"] = run.version

    def get_last_lr(self) -> list[Any]:
        return self._schedule.get_last_lr()

    def state_dict(self) -> dict[str, Any]:
        """The schedule's, with a metric that has moved nothing yet."""
        metric = _given[self._schedule].get(0 if self._run is None else self._run.version)
        return self._schedule.state_dict() | ({} if metric is None else {_SAVED: metric})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        state = dict(state_dict)
        given = _given[self._schedule]
        given.clear()
        if _SAVED in state:
            given[0 if self._run is None else self._run.version] = state.pop(_SAVED)
        self._schedule.load_state_dict(state)

    def __getattr__(self, name: str) -> Any:
        if name == "_schedule":
            raise AttributeError(name)
        return getattr(self._schedule, name)
