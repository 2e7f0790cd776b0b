"""The memory of a running job's agents as a destination: ``memory://JOB``, with JOB as for ``keepstep stacks``.

Queries the job's agents through the command ``keepstep ask``, which handles access and tokens. What ranks report about
their shards comes from processes that run user code: every value is checked before use.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from keepstep import _checkpoint
from keepstep._command import keepstep_command
from keepstep._errors import KeepstepError
from keepstep._running_job import RunningJob
from keepstep.checkpoint import destinations

SCHEME = "memory://"
_QUICK_S, _READ_S = 15.0, 660.0  # the agents' own limits are below these
_MAX_DIMENSIONS, _MAX_ELEMENTS, _MAX_NAME = 64, 1 << 62, 4096
_RANKS_AT_ONCE = 500  # a request has at most 16 KiB
_TRIES = 10  # if a version is overwritten while it is read

NOTHING = (
    "its agents hold no copies. State that all ranks have alike is kept by the ranks that live; "
    "run.checkpoint(memory_every_steps=1) has the agents keep it, too"
)
_REFUSED = {
    "rm": "there is nothing to remove: it is overwritten as training goes on, and gone with the job",
    "pin": "it cannot be kept: it is overwritten as training goes on. run.checkpoint(...) saves to destinations "
    "where checkpoints can be pinned",
    "export": "it is overwritten as training goes on, before it could be read. Export what "
    "run.checkpoint(...) has saved",
    "diff": "it is overwritten as training goes on, before it could be read. Compare what run.checkpoint(...) "
    "has saved",
}  # fmt: skip


def is_memory(destination: str | os.PathLike[str]) -> bool:
    """Whether it, or DESTINATION@STEP, is the memory of a running job. What the memory server holds comes first."""
    place, _ = destinations.split_step(os.fspath(destination))
    return place.startswith(SCHEME) and not _is_served(place)


def _is_served(place: str) -> bool:
    if not destinations.in_memory(place):
        return False
    try:
        destinations.open_store(place).head("owner.json")
    except _checkpoint.Error as error:
        if error.code != "NOT_FOUND":
            raise KeepstepError(f"'{place}': {error}") from None
        return False
    return True


def served_here() -> list[str]:
    """The destinations in this machine's memory server; none if there is no server."""
    asked = subprocess.run(
        [keepstep_command(), "memory", "status", "--json"], capture_output=True, text=True, check=False
    )
    if asked.returncode != 0:
        return []
    return [SCHEME + each["name"] for each in json.loads(asked.stdout)["destinations"]]


def refuse(command: str, destinations: Sequence[str]) -> None:
    """Raises, with advice, if a destination is in memory, which `command` does not support."""
    for destination in destinations:
        if is_memory(destination):
            raise KeepstepError(f"{destination} is the memory of a running job: {_REFUSED[command]}")


class Job(RunningJob):
    """A running job, queried from outside. Used in a ``with``."""

    def __init__(self, destination: str, key: Sequence[str] = ()) -> None:
        super().__init__(destination.removeprefix(SCHEME), key, called=destination)

    def question(self, limit_s: float = _QUICK_S, **fields: Any) -> dict[str, Any]:
        return self.ask("memory", limit_s, **fields)

    def held(self) -> dict[str, Any]:
        """Everything that the agents hold, and the resulting versions, newest first."""
        return self.question(do="hold")

    def texts(self, version: dict[str, Any], held: dict[str, Any]) -> dict[int, str] | None:
        """The text that describes the shard of each rank with a copy; None if one was overwritten meanwhile."""
        nodes: dict[int, list[int]] = {}  # by rank
        for line in held["held"]:
            same = (line["version"], line["sharding"]) == (version["version"], version["sharding"])
            if same and "rank" in line and line["rank"] < version["world"]:
                nodes.setdefault(line["rank"], []).append(line["node"])
        found: dict[int, str] = {}
        while missing := [rank for rank in nodes if rank not in found]:
            node = nodes[missing[0]][0]
            ranks = [rank for rank in missing if nodes[rank][0] == node][:_RANKS_AT_ONCE]
            answer = self.question(
                do="texts", node=node, version=version["version"], sharding=version["sharding"], ranks=ranks
            )
            if not answer["texts"]:
                raise KeepstepError(f"{self.called}: node {node} sent an invalid answer")
            for line in answer["texts"]:
                rank = line["rank"]
                if line["result"] == "good" and rank in ranks:
                    found[rank] = line["text"]
                elif len(nodes.get(rank, ())) > 1:
                    nodes[rank].pop(0)  # ask another node
                elif line["result"] == "corrupt":
                    raise KeepstepError(
                        f"{self.called}: the copy of the shard of rank {rank} on node {node} is corrupt"
                    )
                else:
                    return None
        return found

    def check(self, node: int, version: int | None) -> Iterator[list[dict[str, Any]]]:
        """Has the agent of `node` read what it holds, or only `version`; yields the results in parts."""
        after, over = 0, False
        which = {} if version is None else {"version": version}
        while not over:
            answer = self.question(_READ_S, do="check", node=node, after=after, **which)
            after, over = answer["last"], answer["over"]
            yield answer["checked"]


# ---- descriptions of shards -----------------------------------------------------------------------------------------


@dataclass
class Tensor:
    """A tensor as ranks hold it: whole, or as parts of a DTensor.

    Attributes:
        parts: offsets and lengths of each box, with the ranks that hold it.
    """

    dtype: str
    shape: tuple[int, ...]
    parted: bool
    parts: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = field(default_factory=dict)


@dataclass
class Contents:
    """The contents of a version.

    Attributes:
        tensors: by name; if ranks hold different tensors under one name, the name also lists the ranks of each.
        values: names of values that are not tensors.
        capsules: bytes of what forward passes changed, by rank.
    """

    tensors: dict[str, Tensor]
    values: list[str]
    capsules: dict[int, int]


def _numbers(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > _MAX_DIMENSIONS:
        raise ValueError("a shape that is none")
    if any(type(number) is not int or not 0 <= number < _MAX_ELEMENTS for number in value):
        raise ValueError("a shape that is none")
    if math.prod(value) >= _MAX_ELEMENTS:
        raise ValueError("a shape that no memory holds")
    return tuple(value)


def _tensor(name: Any, dtype: Any, shape: Any, layout: Any) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """Dtype, whole shape and offsets."""
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME or not name.isprintable():
        raise ValueError("a name that is none")
    if not isinstance(dtype, str) or _checkpoint.dtype_bytes(dtype) == 0:
        raise ValueError(f"'{name}' of a dtype that is none")
    lengths = _numbers(shape)
    if layout is None:
        return dtype, lengths, (0,) * len(lengths)
    if not isinstance(layout, list) or len(layout) != 2:
        raise ValueError(f"'{name}' in a layout that is none")
    whole, offsets = map(_numbers, layout)
    if not len(whole) == len(offsets) == len(lengths) or any(
        begin + count > end for begin, count, end in zip(offsets, lengths, whole, strict=True)
    ):
        raise ValueError(f"'{name}' outside of its shape")
    return dtype, whole, offsets


def contents(texts: dict[int, str]) -> Contents:
    """The contents according to all ranks' texts (python/keepstep/torch/sharded/layout.py). KeepstepError: invalid."""
    found: dict[str, dict[tuple[str, tuple[int, ...]], Tensor]] = {}
    values: dict[str, None] = {}
    capsules = {}
    for rank in sorted(texts):
        try:
            said = json.loads(texts[rank])
            tensors, layout, small, capsule = (said[key] for key in ("tensors", "layout", "values", "capsule"))
            if not (isinstance(tensors, list) and isinstance(layout, dict) and isinstance(small, dict)):
                raise ValueError("no lists of tensors and values")
            for name, dtype, shape in tensors:
                kind, whole, offsets = _tensor(name, dtype, shape, layout.get(name))
                of = found.setdefault(name, {})
                tensor = of.setdefault((kind, whole), Tensor(kind, whole, name in layout))
                tensor.parts.setdefault((offsets, _numbers(shape)), []).append(rank)
            values |= dict.fromkeys(name for name in small if name.isprintable())
            if capsule:
                capsules[rank] = len(capsule) * 3 // 4 - capsule[-2:].count("=")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise KeepstepError(f"what describes the shard of rank {rank} is not understood: {error}") from None
    whole_names = {}
    for name, kinds in found.items():
        for tensor in kinds.values():
            ranks = sorted({rank for held in tensor.parts.values() for rank in held})
            whose = f" (of ranks {', '.join(map(str, ranks))})" if len(kinds) > 1 else ""
            whole_names[name + whose] = tensor
    return Contents(whole_names, [*values], capsules)


def look(job: Job, step: int | None) -> tuple[dict[str, Any], dict[str, Any], Contents]:
    """What the agents hold, the version of `step` (or the newest complete one), and its contents."""
    for _ in range(_TRIES):
        held = job.held()
        versions = held["versions"]
        if not versions:
            raise KeepstepError(f"{job.called}: {NOTHING}")
        wanted = [each for each in versions if (each["version"] == step if step is not None else not each["lost"])]
        if not wanted:
            there = ", ".join(f"{each['version']}{' (not complete)' if each['lost'] else ''}" for each in versions)
            what = "no complete step" if step is None else f"no step {step} (any more)"
            raise KeepstepError(f"{job.called}: {what} is in memory; there are {there}")
        texts = job.texts(wanted[0], held)
        if texts is not None:
            return held, wanted[0], contents(texts)
    raise KeepstepError(
        f"{job.called}: each step was overwritten while it was read, {_TRIES} times: the job's steps are too short"
    )


def jobs_here() -> list[str]:
    """The memory destinations of this user's jobs on this machine. KeepstepError: they cannot be listed."""
    listed = subprocess.run([keepstep_command(), "jobs", "--json"], capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        raise KeepstepError(f"the jobs of this machine are not known: {listed.stderr.strip()}")
    jobs = [json.loads(line) for line in listed.stdout.splitlines()]
    # Node 0's launcher answers for all. If it is not here, another launcher says where it is.
    first = {job["job"] for job in jobs if job.get("node") == 0}
    asked = [job for job in jobs if job.get("node") == 0 or job["job"] not in first]
    names = [job["job"] for job in asked]
    return [SCHEME + (job["job"] if names.count(job["job"]) == 1 else str(job["pid"])) for job in asked]
