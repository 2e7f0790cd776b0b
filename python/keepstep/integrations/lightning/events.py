"""Callbacks and loggers hear of each event once, however often the end of a step is run."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lightning.pytorch.callbacks import Callback, Checkpoint, EarlyStopping, ModelCheckpoint
from lightning.pytorch.trainer import call
from lightning.pytorch.trainer.connectors.logger_connector.logger_connector import _LoggerConnector

from keepstep._session import Session

if TYPE_CHECKING:
    from keepstep.torch.runtime.run import Run

Heard = Counter[str]  # how often, by the event's name
_LOG = "log_metrics"  # the name of what loggers are told
_FREQUENT = ("batch", "backward", "zero_grad", "optimizer_step")  # in the names of events that are not rare


def has_state(callback: Callback) -> bool:
    """Whether it says what it remembers. That is put back, and so it hears the events of a step's end again."""
    return type(callback).state_dict is not Callback.state_dict


class Events:
    """Counts them by name from the last commit on: after a fault they come again in the same order. After a change of
    size they do too, except for those of a validation's batches.

    A process that takes over a rank does not repeat what its predecessor told by a step's end, or in rare events; but
    it hears what opens training, an epoch or a validation.

    Attributes:
        took_over: this process is in its first entry, and no step is committed in it.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._run: Run | None = None
        self._counts = True
        self.took_over = False
        self._marked = b""
        self._version = 0
        self._count: Heard = Counter()  # since the commit of that version, in this entry
        self._heard: Heard = Counter()  # of these, in any entry
        self._saved_before: set[str] = set()  # files of checkpoints, in earlier entries
        self._saved: set[str] = set()
        self._known: dict[int, tuple[Heard, set[str]]] = {}  # what was heard and saved after other commits

    def _turn_to(self, version: int) -> None:
        """What follows this commit begins. With sharded state a fault may go back past one: it comes again, too."""
        self._known[self._version] = self._heard, self._saved | self._saved_before
        self._known = {each: known for each, known in self._known.items() if each >= version - 1}
        self._version = version
        self._count = Counter()
        self._heard, self._saved_before = self._known.get(version, (Counter(), set()))
        self._saved = set()

    @property
    def under_way(self) -> bool:
        return self._run is not None

    def enter(self, run: Run, fresh: bool, takes_over: bool) -> None:
        """An entry begins.

        Args:
            fresh: in this process it is the first.
            takes_over: the process has become rank 0: what its predecessor logged and saved counts.
        """
        if self._version != run.version:
            self._turn_to(run.version)
        self._saved_before |= self._saved
        self._saved = set()
        self._count = Counter()
        self._run = run
        self.took_over = fresh
        self._marked = b""  # perhaps it has another rank
        if fresh or takes_over:
            self._take_over(fresh)

    def leave(self) -> None:
        self._run = None

    def committed(self) -> None:
        """The end of another step begins."""
        assert self._run is not None
        self.took_over = False
        self._turn_to(self._run.version)

    @contextlib.contextmanager
    def event(self, name: str, rare: bool) -> Iterator[bool]:
        """`name` is heard; whether it was before. `rare`: it may take long, so a mark is set on both sides.

        Raises if the generation ended: what it tells may be wrong.
        """
        assert self._run is not None
        self._run._check_interrupted()
        if not self._counts:
            yield False
            return
        before = self._count[name] < self._heard[name]
        if rare and not before:
            self.mark()
        yield before
        self._run._check_results()  # if one was cut short, what was told is wrong, and is told again
        self._count[name] += 1
        if not before:
            self._heard[name] = self._count[name]
            if rare:
                self.mark()

    @contextlib.contextmanager
    def uncounted(self) -> Iterator[None]:
        """Inside, all callbacks hear what this process missed and its predecessor heard."""
        self._counts = False
        try:
            yield
        finally:
            self._counts = True

    # ---- files of checkpoints ----

    def saving(self, path: Any) -> None:
        """A checkpoint is written there."""
        if self._run is not None:
            self._saved.add(str(path))
            self.mark()

    def is_written_again(self, path: Any) -> bool:
        """Whether `path` was written in this step's end, in an earlier entry: its file is to be replaced."""
        return str(path) in self._saved_before - self._saved

    # ---- for a successor ----

    def _key(self) -> str:
        assert self._run is not None
        return self._session.key(f"lightning/{self._run.rank}")

    def mark(self) -> None:
        """What this rank told so far."""
        known = self._known | {self._version: (self._heard, self._saved | self._saved_before)}
        mark = json.dumps({version: [heard, sorted(saved)] for version, (heard, saved) in known.items()}).encode()
        if mark != self._marked:
            self._session.store("set", self._key(), mark, ends_with_generation=False)
            self._marked = mark

    def _take_over(self, fresh: bool) -> None:
        assert self._run is not None
        kept = self._session.kept(self._key())
        self._run._check_interrupted()
        marked = {
            int(version): (Counter(heard), set(saved)) for version, (heard, saved) in json.loads(kept or b"{}").items()
        }
        heard, saved = marked.get(self._version, (Counter(), set()))
        if fresh:
            if self._version in marked:
                self._known = marked
                self._heard, self._saved_before = heard, saved
        else:  # its callbacks have heard of the events; the loggers of other ranks write nothing
            self._heard[_LOG] = heard[_LOG]
            self._saved_before |= saved


# ---- Lightning's side ----


def _events_of(trainer: Any) -> Events | None:
    fit = getattr(trainer.fit_loop, "fit", None)
    return fit.events if fit is not None and fit.events.under_way else None


_tell_callbacks = call._call_callback_hooks


def _call_callback_hooks(
    trainer: Any, hook_name: str, *args: Any, monitoring_callbacks: bool | None = None, **kwargs: Any
) -> None:
    events = _events_of(trainer)
    if events is None:
        _tell_callbacks(trainer, hook_name, *args, monitoring_callbacks=monitoring_callbacks, **kwargs)
        return
    module = trainer.lightning_module
    around, module._current_fx_name = module._current_fx_name, hook_name
    rare = not any(part in hook_name for part in _FREQUENT)
    opens = rare and hook_name.endswith("_start")
    for each in trainer.callbacks:  # one by one: a fault may interrupt what one of them does
        if monitoring_callbacks in (None, isinstance(each, EarlyStopping | Checkpoint)):
            with (
                events.event(hook_name, rare) as before,
                trainer.profiler.profile(f"[Callback]{each.state_key}.{hook_name}"),
            ):
                if not before or has_state(each) or (opens and events.took_over):
                    getattr(each, hook_name)(trainer, module, *args, **kwargs)
    module._current_fx_name = around


_tell_loggers = _LoggerConnector.log_metrics


def _log_metrics(self: Any, metrics: dict[str, Any], step: int | None = None) -> None:
    events = _events_of(self.trainer)
    if events is None or not self.trainer.loggers or not metrics:
        _tell_loggers(self, metrics, step)
        return
    with events.event(_LOG, rare=False) as before:
        self.trainer.fit_loop.fit.loader._log_numbers({name: float(value) for name, value in metrics.items()})
        if before:
            self._logged_metrics.update(metrics)
        else:
            _tell_loggers(self, metrics, step)


_file_exists = ModelCheckpoint.file_exists


def _exists_already(self: Any, filepath: Any, trainer: Any) -> bool:
    """A checkpoint that an interrupted entry wrote is written again, under its name."""
    events = _events_of(trainer)
    if events is None:
        return _file_exists(self, filepath, trainer)
    exists = self._fs.exists(filepath) and not events.is_written_again(filepath)
    return bool(trainer.strategy.broadcast(exists))


call._call_callback_hooks = _call_callback_hooks
_LoggerConnector.log_metrics = _log_metrics  # type: ignore[method-assign]
ModelCheckpoint.file_exists = _exists_already  # type: ignore[method-assign]
