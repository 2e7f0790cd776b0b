"""Checkpoints through ``torch.distributed.checkpoint``, on a disk or S3: atomic, checked, and safe to load.

    dcp.save(state, storage_writer=Writer("s3://bucket/run", step=120, keep=3))
    dcp.load(state, storage_reader=Reader("s3://bucket/run"), planner=LoadPlanner())

It writes DCP's own layout, which DCP alone can load, and a manifest. See docs/reference/checkpoint.md.

``run.checkpoint`` uses the same parts (manager.py). DCP takes long to import, so it is imported when used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keepstep.torch.checkpoint.planner import LoadPlanner as LoadPlanner
    from keepstep.torch.checkpoint.reader import Reader as Reader
    from keepstep.torch.checkpoint.writer import Writer as Writer

__all__ = ["LoadPlanner", "Reader", "Writer"]

_WHERE = {"LoadPlanner": "planner", "Reader": "reader", "Writer": "writer"}


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
