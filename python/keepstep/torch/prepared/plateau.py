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
    from keepstep.torch.prepared.prepared_loader import PreparedLoader
    from keepstep.torch.runtime.run import Run

_SAVED = "keepstep_metric"  # in a checkpoint: was given, and has moved nothing yet


class _Metrics:
    """What one schedule was given in one recoverable function. It outlives an entry, in the survivors.

    Attributes:
        function: the number of the function in this process.
        given: by the version that was committed last.
    """

    def __init__(self) -> None:
        self.function = 0
        self.given: dict[int, float] = {}

    def enter(self, run: Run) -> None:
        """What an earlier function was given last counts for the first commit of this one."""
        if self.function != run._session.functions:
            self.function = run._session.functions
            self.given = {0: self.given[max(self.given)]} if self.given and run.version == 0 else {}


_metrics: weakref.WeakKeyDictionary[ReduceLROnPlateau, _Metrics] = weakref.WeakKeyDictionary()


class PreparedPlateau(ReduceLROnPlateau):
    """A protected schedule that moves when the next commit begins.

    All ranks call ``step`` with the same metric, at most once between two commits.
    """

    _schedule: ReduceLROnPlateau
    _metrics: _Metrics
    _run: Run | None
    _loader: PreparedLoader | None
    _stepped: int | None  # in this entry, after that version

    def __init__(self, schedule: ReduceLROnPlateau) -> None:
        metrics = _metrics.setdefault(schedule, _Metrics())
        self.__dict__.update(_schedule=schedule, _metrics=metrics, _run=None, _loader=None, _stepped=None, shown=None)
        if _SAVED in vars(schedule):  # a checkpoint was loaded into the schedule itself
            metrics.given = {0: vars(schedule).pop(_SAVED)}

    @property
    def scheduler(self) -> ReduceLROnPlateau:
        """The protected one."""
        return self._schedule

    # ---- the training ----

    def enter(self, run: Run, loader: PreparedLoader | None = None) -> PreparedPlateau:
        """An entry begins, on all ranks, which have a process group: a metric that any of them was given counts.

        Args:
            loader: of a loop that the user wrote. None: what follows a commit is always done again after a fault.
        """
        self.__dict__.update(_run=run, _loader=loader, _stepped=None)
        if run.rehearsing:
            return self
        self._metrics.enter(run)
        known = self._metrics.given.get(run.version)
        numbers = agreement.numbers_of_ranks(float(known is not None), 0.0 if known is None else known)
        run._check_interrupted()
        for knows, metric in numbers:
            if knows:
                self._metrics.given[run.version] = metric
                break
        return self

    def moves(self) -> list[Callable[[], Any]]:
        """What the commit that follows begins with."""
        metric = self._pending
        return [] if metric is None else [functools.partial(self._schedule.step, metric)]

    def vetoed(self) -> None:
        """The newest commit changed nothing: the next one begins with the move."""
        assert self._run is not None
        given = self._metrics.given
        if (metric := given.get(self._run.version - 1)) is not None:
            given[self._run.version] = metric

    def finish(self) -> None:
        """The training is over on all ranks: there is no further commit, and the schedule moves now."""
        if self._run is None:  # this process came after it
            return
        for move in self.moves():
            move()
        self._metrics.given = {}
        self.__dict__.update(_run=None, _loader=None)

    @property
    def _pending(self) -> float | None:
        return self._metrics.given.get(0 if self._run is None else self._run.version)

    # ---- the user's ----

    def step(self, metrics: Any, epoch: int | None = None) -> None:  # type: ignore[override]
        run = self._run
        if run is None:
            raise KeepstepError("ReduceLROnPlateau.step: no training is under way that it could move in")
        if run.rehearsing:
            return
        if self._loader is not None and not self._loader._may_evaluate():
            raise KeepstepError(
                "ReduceLROnPlateau.step: after a fault this call would be lost, or made twice. Call it behind the "
                "batches of an epoch of loader.epochs(n) (Accelerate: accelerator.epochs(n), Fabric: "
                "fabric.strategy.epochs(n)), or in a function that run.evaluate got"
            )
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
        given = self._metrics.given
        given[run.version] = metric
        for version in [each for each in given if each < run.version - 1]:  # sharded state may go back by one
            del given[version]
        self.__dict__["_stepped"] = run.version

    def get_last_lr(self) -> list[Any]:
        return self._schedule.get_last_lr()

    def state_dict(self) -> dict[str, Any]:
        """The schedule's, with a metric that has moved nothing yet."""
        metric = self._pending
        return self._schedule.state_dict() | ({} if metric is None else {_SAVED: metric})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        state = dict(state_dict)
        metric = state.pop(_SAVED, None)
        self._metrics.given = {} if metric is None else {0 if self._run is None else self._run.version: metric}
        self._schedule.load_state_dict(state)

    def __getattr__(self, name: str) -> Any:
        if name == "_schedule":
            raise AttributeError(name)
        return getattr(self._schedule, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._schedule, name, value)
