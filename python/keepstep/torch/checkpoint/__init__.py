"""Checkpoints through ``torch.distributed.checkpoint``, on a disk or S3: atomic, checked, and safe to load.

    dcp.save(state, storage_writer=Writer("s3://bucket/run", step=120, keep=3))
    dcp.load(state, storage_reader=Reader("s3://bucket/run"), planner=LoadPlanner())

What is written is DCP's own layout, which DCP alone loads, and a manifest beside it. docs/reference/checkpoint.md.
"""

from __future__ import annotations

from keepstep.torch.checkpoint.planner import LoadPlanner
from keepstep.torch.checkpoint.reader import Reader
from keepstep.torch.checkpoint.writer import Writer

__all__ = ["LoadPlanner", "Reader", "Writer"]
