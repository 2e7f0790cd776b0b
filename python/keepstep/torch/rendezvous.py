"""``init_process_group("keepstep")`` without a store, inside a recoverable function.

The default rendezvous (``env://``) opens a TCPStore at rank 0, which a replaced rank could never join again. Inside a
recoverable function it gives the agent's Store instead; everywhere else it is torch's own.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

from keepstep._session import session_or_none

_stores: list[Any] = []  # torch keeps only the C++ half of a Store alive


def install() -> None:
    """Once per process."""
    # The package exports a function of the same name, so the module is asked for by its path.
    module = importlib.import_module("torch.distributed.rendezvous")
    handlers: dict[str, Callable[..., Iterator[Any]]] = module._rendezvous_handlers
    original = handlers["env"]
    if getattr(original, "_keepstep", False):
        return

    def from_environment(*args: Any, **kwargs: Any) -> Iterator[Any]:
        current = session_or_none()
        if current is None or not current.recoverable:
            yield from original(*args, **kwargs)
            return
        from keepstep.torch.store import AgentStore

        assignment = current.need_rank("init_process_group")
        _stores.append(AgentStore(current))
        yield _stores[-1], assignment.rank, assignment.world_size

    from_environment._keepstep = True  # type: ignore[attr-defined]
    handlers["env"] = from_environment
