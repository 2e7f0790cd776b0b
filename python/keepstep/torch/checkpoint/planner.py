"""A LoadPlanner that reports all differences between a checkpoint and a model, not only the first."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan

from keepstep._errors import KeepstepError

_MAX_SHOWN = 20


class LoadPlanner(DefaultLoadPlanner):
    """DCP's default planner; a checkpoint of another model is refused with every key and shape that differs."""

    def create_local_plan(self) -> LoadPlan:
        try:
            return super().create_local_plan()
        except (RuntimeError, ValueError) as error:
            found = self._differences()
            if not found:
                raise
            raise KeepstepError(f"the checkpoint is not one of this model: {'; '.join(found)}") from error

    def _differences(self) -> list[str]:
        assert self.metadata is not None
        saved = self.metadata.state_dict_metadata
        missing = [name for name in self.state_dict if name not in saved]
        shapes = []
        for name, value in self.state_dict.items():
            entry = saved.get(name)
            if entry is None:
                continue
            is_tensor = isinstance(value, torch.Tensor)
            if isinstance(entry, TensorStorageMetadata) != is_tensor:
                kinds = ("a tensor", "no tensor")
                shapes.append(f"'{name}' is {kinds[is_tensor]} in it and {kinds[not is_tensor]} here")
            elif isinstance(entry, TensorStorageMetadata):
                here = list(getattr(value, "global_shape", None) or value.size())
                if list(entry.size) != here:
                    shapes.append(f"'{name}' is {list(entry.size)} in it and {here} here")
        extra = [name for name in saved if name not in self.state_dict]
        found = []
        if missing and not self.allow_partial_load:
            found.append(f"{_count(missing, 'key')} missing in it: {_shown([repr(name) for name in missing])}")
        if shapes:
            found.append(f"{_count(shapes, 'shape')} different: {_shown(shapes)}")
        if found and extra:
            found.append(f"{_count(extra, 'key')} only in it: {_shown([repr(name) for name in extra])}")
        return found


def _count(items: Sequence[str], what: str) -> str:
    return f"1 {what} is" if len(items) == 1 else f"{len(items)} {what}s are"


def _shown(items: Sequence[str]) -> str:
    more = f" and {len(items) - _MAX_SHOWN} more" if len(items) > _MAX_SHOWN else ""
    return ", ".join(items[:_MAX_SHOWN]) + more
