"""The run whose function this process is in, for code that knows no `Run`: what it may ask of it.

One per process; `Run` puts itself here. Main thread, and threads that the function started.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class CurrentRun(Protocol):
    """What `keepstep.torch.runtime.run.Run` answers."""

    @property
    def _step_now(self) -> int:
        """The step that this process computes right now, or evaluates after its commit; 0 outside of one."""

    @property
    def _step_committed(self) -> bool:
        """Whether that step is already committed."""

    @property
    def _world_changes(self) -> bool:
        """Whether all ranks know that the world changes after the last committed step."""

    def _form(self, what: str) -> None:
        """Waits for a rank and its peers, which are needed from here on: for `what`."""

    def _require_peers(self, what: str) -> None:
        """Raises KeepstepError in an entry that has set up its state, and not yet joined."""

    def _before_forward(self, module: torch.nn.Module) -> None:
        """The forward of a protected module begins. Raises where it would use what no commit left."""


_current: CurrentRun | None = None


def set_current(run: CurrentRun) -> None:
    global _current
    _current = run


def current() -> CurrentRun | None:
    return _current


def current_step() -> int:
    """The step that this process is computing, or evaluating after its commit; 0 outside one."""
    return 0 if _current is None else _current._step_now


def after_commit() -> bool:
    """Whether the step that `current_step` names was committed before what runs now."""
    return _current is not None and _current._step_committed


def world_changes() -> bool:
    """Whether all ranks know that the world changes after the last committed step."""
    return _current is not None and _current._world_changes


def before_forward(module: torch.nn.Module) -> None:
    """The forward of a module begins that the current run protects, or that an earlier one did."""
    if _current is not None:
        _current._before_forward(module)
