"""The checking mode: finds state that changes without being protected.

It is on for the first steps of a job; with ``--check``, for all.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from keepstep._errors import KeepstepError
from keepstep.torch.state.registry import Registry
from keepstep.torch.tensors.digest import of_bytes

if TYPE_CHECKING:
    from keepstep._session import Session

CHECKED_STEPS = 3  # without --check


class Checks:
    """Checks, in one process, that nothing changes protected state between commits, and that all state is protected.

    Args:
        function: the training function, whose loop is searched.
    """

    def __init__(self, session: Session, registry: Registry, function: Callable[..., Any]) -> None:
        self._session = session
        self._registry = registry
        self._code = getattr(function, "__code__", None)
        self._left = CHECKED_STEPS
        self._searched = False
        self._committed: dict[str, int] | None = None  # as the last commit left it; None: nothing to compare

    @property
    def due(self) -> bool:
        return not self._session.rehearsing and (self._session.welcome.check_all or self._left > 0)

    def _now(self) -> dict[str, int]:
        return digests(self._registry, self._session.capsule_ids())

    def before(self, step: int) -> None:
        """The step begins."""
        self._search()
        if not self.due:
            return
        now = self._now()
        if self._committed is not None:
            compare(self._committed, now, step)
        self._committed = now

    def search_again(self) -> None:
        """Called in each entry: its local variables are new."""
        self._searched = False

    def _search(self) -> None:
        """Searches for what the loop uses and no peer could send, such as a model that this entry made."""
        if self._searched or self._code is None or self._session.rehearsing:
            return
        self._searched = True
        if found := unprotected(loop_frame(self._code), self._registry):
            raise KeepstepError(
                f"check: the training loop uses {', '.join(found)}, which is not protected: after a fault a "
                "rank would go on with fresh values. Make it in build(), and return it as a field of keepstep.State."
            )

    def at_commit(self, step: int) -> None:
        """The step is about to be committed."""
        if self._committed is not None and self.due:
            compare(self._committed, self._now(), step)

    def after(self) -> None:
        """The step was committed."""
        self._committed = self._now() if self.due else None
        self._left -= 1

    def forget(self) -> None:
        """The state was replaced."""
        self._committed = None

    def stop(self) -> None:
        """Stops, except with ``--check``: digests of the whole state would lengthen a recovery."""
        self._left = 0


def digests(registry: Registry, capsule_ids: set[int]) -> dict[str, int]:
    """XXH3 of each protected tensor."""
    return {name: of_bytes(tensor) for name, tensor in registry.flatten(capsule_ids).tensors.items()}


def compare(before: dict[str, int], after: dict[str, int], step: int) -> None:
    """Raises if protected tensors changed between a commit and the next one."""
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    if changed:
        listed = ", ".join(f"'{name}'" for name in changed[:8]) + (
            f" and {len(changed) - 8} more" if len(changed) > 8 else ""
        )
        raise KeepstepError(
            f"check: protected state changed outside step.commit in step {step}: {listed}. A step that is redone would "
            "not start from the committed state. Move what changes it (optimizer.step, an average, a reset) into "
            "step.commit(...), or, where it is temporary, into `with run.restored():`."
        )


def loop_frame(function_code: Any) -> FrameType | None:
    """The frame of the training function, seen from inside one of its calls."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not function_code:
        frame = frame.f_back
    return frame


def unprotected(frame: FrameType | None, registry: Registry) -> list[str]:
    """Modules with state, and optimizers, that the loop can reach by a name but that are not protected."""
    if frame is None:
        return []
    covered: set[int] = set()
    for item in registry.objects.values():
        covered.add(id(item))
        if isinstance(item, torch.nn.Module):
            covered.update(id(module) for module in item.modules())
            covered.update(id(parameter) for parameter in item.parameters())
    found = []
    for name, value in frame.f_locals.items():
        if id(value) in covered:
            continue
        if isinstance(value, Optimizer):
            if not any(item.state is value.state for item in registry.optimizers()):  # else a wrapper of that one
                found.append(f"optimizer '{name}'")
        elif isinstance(value, torch.nn.Module):
            state = [*value.parameters(), *value.buffers()]
            own = [tensor for tensor in state if id(tensor) not in covered]
            if own and not all(
                any(tensor is buffer for module in registry.modules() for buffer in module.buffers()) for tensor in own
            ):
                found.append(f"module '{name}'")
    return found
