"""What ``fabric.log`` was given: loggers hear of it once, however often a fault makes the loop log it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from lightning.fabric.fabric import Fabric
from lightning.fabric.utilities.apply_func import convert_tensors_to_scalars

from keepstep._session import Session

if TYPE_CHECKING:
    from keepstep.integrations.lightning.fabric.loader import EntryLoader
    from keepstep.torch.runtime.run import Run

Logged = tuple[dict[str, Any], int | None]  # values, and the user's number of a step


class Logs(torch.nn.Module):
    """Protected by its extra state, which differs between ranks.

    What is logged in a step is told once the step is committed. What follows an epoch's batches is told at once, and
    counted: when it is done again after a fault, the first calls are known. A process that takes over a rank finds in
    the Store what its predecessor told.
    """

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session
        self._fabric: Fabric | None = None
        self._run: Run | None = None
        self._loader: EntryLoader | None = None
        self._in_step: list[Logged] = []  # since the last commit
        self._taken: list[Logged] = []  # in the step that was voted on last
        self._ends: str | None = None  # the loop is past this epoch's batches
        self._count = 0  # of what was logged since then
        self._heard: dict[str, int] = {}  # of these, in any entry since the last commit, by epoch

    def get_extra_state(self) -> dict[str, Any]:
        return {"logged": self._taken}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self._taken = [(values, step) for values, step in state["logged"]]

    # ---- where the loop is ----

    def enter(self, fabric: Fabric, run: Run, loader: EntryLoader) -> None:
        """An entry begins."""
        self._fabric, self._run, self._loader = fabric, run, loader
        self._in_step = []
        self._ends = None
        mark = json.loads(self._session.kept(self._key) or b"{}")
        run._check_interrupted()
        self._heard = mark["heard"] if mark.get("version") == run.version else {}
        if run.version and mark.get("version") != run.version:
            self._tell_taken()

    def leave(self) -> None:
        """It is over, or interrupted."""
        self._run = self._loader = None

    def loop_begins(self) -> None:
        self._ends = None

    def end_begins(self, epoch: int) -> None:
        """Its batches are over. A step may be open: what was logged in it is told now."""
        self._ends = str(epoch)
        self._count = 0
        self.flush()

    def flush(self) -> None:
        """Tells what was logged in a step that is not committed yet, or never."""
        waiting, self._in_step = self._in_step, []
        if self._ends is None:
            self._ends, self._count = "", 0
        for values, step in waiting:
            self._tell_of_the_end(values, step)

    def take(self) -> None:
        """All ranks are about to vote."""
        self._taken = self._in_step

    def committed(self) -> None:
        self._in_step = []
        self._heard = {}
        self._count = 0
        self._tell_taken()

    # ---- what is logged ----

    def log(self, metrics: Mapping[str, Any], step: int | None) -> None:
        run, loader = self._run, self._loader
        assert run is not None and loader is not None
        run._check_interrupted()
        values = dict(convert_tensors_to_scalars(metrics))
        loader._log_numbers(values)
        if self._ends is not None:
            self._tell_of_the_end(values, step)
        elif run._in_step:
            self._in_step.append((values, step))
        else:
            self._tell(values, step)

    def _tell_of_the_end(self, values: dict[str, Any], step: int | None) -> None:
        assert self._ends is not None
        self._count += 1
        if self._count > self._heard.get(self._ends, 0):
            self._tell(values, step)
            self._heard[self._ends] = self._count
            self._mark()

    def _tell_taken(self) -> None:
        for values, step in self._taken:
            self._tell(values, step)
        if self._taken:
            self._mark()

    def _tell(self, values: dict[str, Any], step: int | None) -> None:
        assert self._fabric is not None
        _log_dict(self._fabric, values, step)

    @property
    def _key(self) -> str:
        assert self._run is not None
        return self._session.key(f"fabric/{self._run.rank}")

    def _mark(self) -> None:
        assert self._run is not None
        mark = {"version": self._run.version, "heard": self._heard}
        self._session.store("set", self._key, json.dumps(mark).encode(), ends_with_generation=False)


# ---- Fabric's side ----

_log_dict = Fabric.log_dict


def _log_once(self: Any, metrics: Mapping[str, Any], step: int | None = None) -> None:
    logs = getattr(self.strategy, "logs", None)
    if isinstance(logs, Logs) and self.strategy.run is not None:
        logs.log(metrics, step)
    else:
        _log_dict(self, metrics, step)


_rank_zero_first = Fabric.rank_zero_first


@contextlib.contextmanager
def _rank_zero_goes_first(self: Any, local: bool = False) -> Iterator[None]:
    strategy = self.strategy
    if not isinstance(getattr(strategy, "logs", None), Logs):
        with _rank_zero_first(self, local=local):
            yield
        return
    with strategy.rank_zero_first(local):
        yield


Fabric.log_dict = _log_once  # type: ignore[method-assign]
Fabric.rank_zero_first = _rank_zero_goes_first  # type: ignore[method-assign]
