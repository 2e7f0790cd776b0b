"""The user's DataLoaders: to start and to stop their processes is no hang of the rank.

An iterator is shut down where an exception leaves the loop over it, before anybody hears of that exception, and waits
for workers that are in the middle of a batch, up to 5 s for each. Meanwhile the other ranks wait for this one.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from torch.utils.data import dataloader

from keepstep._session import Session


def track(session: Session) -> None:
    """From here on these waits are marked; once per process."""
    made = getattr(dataloader, "_MultiProcessingDataLoaderIter", None)
    for name in ("__init__", "_shutdown_workers"):
        method = getattr(made, name, None)
        if method is not None and not hasattr(method, "_keepstep"):
            setattr(made, name, _marked(method, session, os.getpid()))


def _marked(method: Any, session: Session, process: int) -> Any:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        if os.getpid() != process:  # a loader's process, which shares our page
            return method(*args, **kwargs)
        session.engine.slow(1)
        try:
            return method(*args, **kwargs)
        finally:
            session.engine.slow(-1)

    call._keepstep = True  # type: ignore[attr-defined]
    return call
