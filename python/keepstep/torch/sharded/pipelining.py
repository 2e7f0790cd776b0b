"""Stages and schedules of ``torch.distributed.pipelining``: in every entry as ``run.setup(sharded=True)`` built them.

In its first step a schedule asks its peers for shapes and stores the answers; in each step it holds what is in transit
between stages. After a step that was left in the middle, torch needs both to be made again. A process that takes over a
rank asks for shapes again, and its peers must answer: so all of them return to the state in which they were built.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import gc
import sys
from typing import Any

from torch.nn.parallel import DistributedDataParallel

_built: list[tuple[Any, dict[str, Any], list[tuple[Any, Any]]]] = []  # with their attributes, and what was in these


def _kinds() -> tuple[type, ...]:
    """The base classes; none if they were never imported, so nothing was built."""
    stages = sys.modules.get("torch.distributed.pipelining.stage")
    schedules = sys.modules.get("torch.distributed.pipelining.schedules")
    if stages is None or schedules is None:
        return ()
    return stages._PipelineStageBase, schedules._PipelineSchedule


def remember() -> None:
    """Records all current stages and schedules, and their attributes."""
    kinds = _kinds()
    if not kinds:
        return
    known = {id(item) for item, _, _ in _built}
    # torch keeps no list of them, and `build` may have put them anywhere.
    for item in gc.get_objects():
        if issubclass(type(item), kinds) and id(item) not in known:  # isinstance() may ask a dead weakref.proxy
            attributes = dict(vars(item))
            contents = [(value, copy.copy(value)) for value in attributes.values() if _is_filled_later(value)]
            _built.append((item, attributes, contents))


def as_built() -> None:
    """Restores all of them. What they are made of (modules, groups) stays the same."""
    for item, attributes, contents in _built:
        vars(item).clear()
        vars(item).update(attributes)
        for container, before in contents:
            _refill(container, before)


def ask_quietly() -> None:
    """If DDP wraps a stage: asking for shapes is not a step.

    torch runs the stage's forward once for that, and DDP then mistakes the backward of the first micro-batch for the
    one that reduces gradients. The sums are still right, but rounded in another order than in all other steps.
    """
    kinds = _kinds()
    if not kinds:
        return
    stage = sys.modules["torch.distributed.pipelining.stage"].PipelineStage
    original = getattr(stage, "_compute_outputs", None)
    if original is None or getattr(original, "_keepstep", False):
        return

    @functools.wraps(original)
    def compute(self: Any, *args: Any, module: Any, **kwargs: Any) -> Any:
        if not isinstance(module, DistributedDataParallel):
            return original(self, *args, module=module, **kwargs)
        with module.no_sync():
            return original(self, *args, module=module, **kwargs)

    compute._keepstep = True  # type: ignore[attr-defined]
    stage._compute_outputs = compute


def _is_filled_later(value: Any) -> bool:
    mutable = dataclasses.is_dataclass(value) and not isinstance(value, type) and hasattr(value, "__dict__")
    return isinstance(value, (dict, list, set)) or mutable


def _refill(container: Any, before: Any) -> None:
    """Refills it in place: others may hold it."""
    if isinstance(container, list):
        container[:] = before
    elif isinstance(container, (dict, set)):
        container.clear()
        container.update(before)
    else:
        vars(container).clear()
        vars(container).update(vars(before))
