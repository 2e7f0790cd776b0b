"""Buffers that the update changes are protected like parameters, so they must be the same on all ranks.

An average of what forward changes on each rank (BatchNorm's statistics) is not: a replacement would silently begin with
another rank's. Found when the update changes such buffers for the first time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

import torch

from keepstep._errors import KeepstepError
from keepstep._session import Session
from keepstep.torch.capsule import Capsule
from keepstep.torch.digests import digest
from keepstep.torch.registry import Slot, buffer_in

_SHOWN = 3


class Released:
    """Of one worker. Main thread."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._copies: dict[str, tuple[Slot, int]] = {}  # buffers that were copies of per-rank ones, and their version

    def after(self, capsule: Capsule, moved: Mapping[str, Slot], rank: int, step: int) -> None:
        """After the update of `step`, which changed the buffers `moved` for the first time.

        Raises:
            KeepstepError: they differ between ranks; names them and what to write.
        """
        self._check_copies(capsule, rank, step)
        if not moved:
            return
        differ = self._unlike_first(moved, rank, step)
        own = [name for name in differ if not capsule.has_copy(name, buffer_in(moved[name]))]
        if own:
            raise _error(own, rank, step)
        if differ:
            self._copies = {name: (moved[name], _version(moved[name])) for name in differ}
            self._say(differ, step)

    def _check_copies(self, capsule: Capsule, rank: int, step: int) -> None:
        """An average begins as a copy, so the second update shows which of both it is."""
        changed = [name for name, (slot, version) in self._copies.items() if _version(slot) != version]
        averages = [name for name in changed if not capsule.has_copy(name, buffer_in(self._copies[name][0]))]
        if averages:
            raise _error(averages, rank, step)
        for name in changed:
            del self._copies[name]

    def _unlike_first(self, moved: Mapping[str, Slot], rank: int, step: int) -> list[str]:
        """Names of those that differ from those of the first process that asks; it says what it has."""
        mine = {name: digest([buffer_in(slot)]) for name, slot in moved.items()}
        given = self._session.assignment
        assert given is not None
        key = f"job/released/{given.generation}/{step}"
        answered, _, _, value = self._session.store(
            "compare_set", key, b"0:" + json.dumps(mine).encode(), -1, ends_with_generation=False
        )
        if not answered or not value:
            return []  # the job is over
        first = json.loads(value)
        return [name for name, bits in mine.items() if first.get(name, bits) != bits]

    def _say(self, names: list[str], step: int) -> None:
        if self._session.claim_once("released/said"):
            what = (
                f"the update copies what forward changes on each rank into {_listed(names)}. A replaced rank has "
                "another rank's values there until the next update copies them again. Where they are used before that, "
                f"write before run.commit: {_LINE}"
            )
            print(f"keepstep: {what}", file=sys.stderr)


_LINE = "for buffer in model.buffers(): torch.distributed.broadcast(buffer, 0)"


def _error(names: list[str], rank: int, step: int) -> KeepstepError:
    return KeepstepError(
        f"protect: the update of step {step} changes {_listed(names)}, and rank {rank} has other values there than its "
        "peers: they are made of what forward changes on each rank (BatchNorm's statistics, an average with "
        "use_buffers=True). A replaced rank would go on with another rank's. Make them the same before run.commit: "
        f"{_LINE}; or convert the model with torch.nn.SyncBatchNorm.convert_sync_batchnorm"
    )


def _listed(names: list[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more buffers"


def _version(slot: Slot) -> int:
    buffer: torch.Tensor | None = buffer_in(slot)
    return -1 if buffer is None else buffer._version
