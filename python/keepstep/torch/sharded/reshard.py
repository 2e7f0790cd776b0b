"""Resharding: what the texts of shards (layout.py) say about it.

Each rank assembles its new shard from the previous ones; the engine plans which rank sends what
(src/rank/shards/shard_exchange.h). What is not part of a DTensor is the same on all ranks.
"""

from __future__ import annotations

import json
from typing import Any

from keepstep._errors import KeepstepError

_SHOWN = 8  # names in an error


def check_alike(shards: list[dict[str, Any]]) -> None:
    """Raises if ranks held tensors of different names, or not parts of the same tensors."""
    first = _whole_shapes(shards[0])
    for rank, shard in enumerate(shards):
        mine = _whole_shapes(shard)
        differ = sorted(name for name in first.keys() | mine.keys() if first.get(name) != mine.get(name))
        if differ:
            names = ", ".join(differ[:_SHOWN]) + (f" and {len(differ) - _SHOWN} more" if len(differ) > _SHOWN else "")
            raise KeepstepError(
                f"this job cannot change its number of ranks: rank {rank} protects other tensors than rank 0: {names}. "
                "Parts of DTensors (fully_shard, parallelize_module) can be resharded; stages of a pipeline and "
                "optimizers that give each rank other parameters cannot."
            )


def _whole_shapes(shard: dict[str, Any]) -> dict[str, tuple[str, list[int]]]:
    layout = shard["layout"]
    return {name: (dtype, layout[name][0] if name in layout else shape) for name, dtype, shape in shard["tensors"]}


def local_tensors(shard: dict[str, Any], parts: dict[str, tuple[list[int], list[int]]]) -> list[list[Any]]:
    """The tensors of `shard` with their shapes on this rank; `parts` says what it holds."""
    result = []
    for name, dtype, shape in shard["tensors"]:
        if (name in parts) != (name in shard["layout"]):
            raise KeepstepError(f"'{name}' is a DTensor before the job's size changed or after it, but not both times")
        if name not in parts:
            result.append([name, dtype, shape])
            continue
        whole, local = parts[name]
        before = shard["layout"][name][0]
        if whole != before:
            raise KeepstepError(f"'{name}' has the shape {whole} now, and had {before} before the job's size changed")
        result.append([name, dtype, local])
    return result


def manifest(shard: dict[str, Any], version: int) -> str:
    """In the format of src/state/vault/shard_manifest.h: each tensor's whole shape, and the bounds of its part."""
    layout = shard["layout"]
    return json.dumps(
        {
            "format": 1,
            "version": version,
            "shards": [
                [name, dtype, *(layout[name] if name in layout else (shape, [0] * len(shape))), shape]
                for name, dtype, shape in shard["tensors"]
            ],
        }
    )
