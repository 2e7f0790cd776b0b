"""What a worker of ``keepstep certify`` writes down: every commit with the digests of its state, and side effects.

Asked for by ``KEEPSTEP_WITNESS``: a folder in which each process appends to a file of its own, one ``write(2)`` a line,
so that a killed process leaves whole lines. ``KEEPSTEP_WITNESS_UNTIL``: the last step of ``run.steps``, whatever the
script says. Read by `keepstep.certify.evidence`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import struct
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from keepstep import _engine, _side_effects
from keepstep.torch.tensors.memory import dense, piece

if TYPE_CHECKING:
    from keepstep._destination import Destination
    from keepstep._session import Session
    from keepstep.torch.state.registry import Registry

_TIMES = ("_runtime", "_per_second", "step_time")


def _digest(tensor: torch.Tensor) -> str:
    held = dense(tensor).cpu()
    return f"{_engine.digest(*piece(held)) & (2**64 - 1):016x}"


def _without_times(value: Any) -> Any:
    """Trainers log how long things took, under such names, and protect their logs: no two runs agree on that."""
    if not isinstance(value, dict):
        return [_without_times(item) for item in value] if isinstance(value, list) else value
    pairs = value.get("__dict__", list(value.items()))  # a dictionary as keepstep sends it has a list of its items
    kept = [[str(key), _without_times(item)] for key, item in pairs if not str(key).endswith(_TIMES)]
    return sorted(kept, key=lambda pair: pair[0])


class Witness:
    """One per worker process. Costs a digest of the whole state per step; for tests of recovery, not for training."""

    def __init__(self, session: Session, folder: Path, until: int | None) -> None:
        self._session = session
        self._until = until
        self._step = 0
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(folder / f"{os.getpid()}.jsonl", flags, 0o644)

    def bounded(self, until: int) -> int:
        """The last step, where the script says `until`."""
        return until if self._until is None else min(until, self._until)

    def redirected(self, destinations: tuple[Destination, ...]) -> tuple[Destination, ...]:
        """In this job's own folder: it begins with no other job's checkpoint, and leaves the user's alone."""
        return tuple(
            replace(each, url=str(self._folder / "saves" / str(number))) for number, each in enumerate(destinations)
        )

    def computed(self, step: int, samples: list[int]) -> None:
        """This rank is about to vote on `step`. What the newest generation says counts: it committed the step."""
        self._step = step
        self._write({"computed": step, "samples": samples})

    def committed(self, step: int, loss: float, registry: Registry, capsule_ids: set[int]) -> None:
        """The state after the commit: ``own`` is what forward changes on each rank by itself."""
        flat = registry.flatten()
        shared = registry.flatten(capsule_ids).tensors
        state: dict[str, str] = {}
        own: dict[str, str] = {}
        devices: set[str] = set()
        for name, tensor in flat.tensors.items():
            (state if name in shared else own)[name] = _digest(tensor)
            devices.add(tensor.device.type)
        compared = json.dumps(_without_times(flat.values))
        values = hashlib.blake2b(compared.encode(), digest_size=8).hexdigest()
        bits = struct.pack("<d", loss).hex()
        self._write(
            {"committed": step, "loss": bits, "state": state, "own": own, "values": values, "devices": sorted(devices)}
        )

    def side_effect(self, what: str, of: str) -> None:
        """Told by `keepstep._side_effects`."""
        self._write({"effect": what, "of": of, "step": self._step, "rehearsing": self._session.rehearsing})

    def _write(self, line: dict[str, Any]) -> None:
        assignment = self._session.assignment
        if assignment is not None:
            line = {**line, "rank": assignment.rank, "generation": assignment.generation}
        os.write(self._file, (json.dumps(line) + "\n").encode(errors="replace"))


def _watch_saves() -> None:
    """``torch.save`` to a path opens the file in C++, where no audit hook is called."""
    save = torch.save

    @functools.wraps(save)
    def watched(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(f, str | os.PathLike):
            _side_effects._hook("open", (f, "wb", os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
        return save(obj, f, *args, **kwargs)

    torch.save = watched


def install(session: Session) -> Witness | None:
    """Before the script runs; None where nobody asked."""
    folder = os.environ.get("KEEPSTEP_WITNESS")
    if not folder:
        return None
    until = os.environ.get("KEEPSTEP_WITNESS_UNTIL", "")
    witness = Witness(session, Path(folder), int(until) if until.isdigit() else None)
    _side_effects.watch(witness.side_effect)
    _watch_saves()
    return witness
