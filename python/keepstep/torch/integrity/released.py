"""Buffers that the update changes are protected like parameters, so they must be the same on all ranks.

What an update makes of this rank's own values is not (BatchNorm's statistics copied, or computed again). A replacement
has another rank's until the next update, which is said when it happens first. Where the update averages them that never
ends: an error, at the second update.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

import torch

from keepstep._errors import KeepstepError
from keepstep._session import Session
from keepstep.torch.state.capsule import Capsule
from keepstep.torch.state.registry import Slot, buffer_in
from keepstep.torch.tensors.digest import digest

_SHOWN = 3


class Released:
    """Of one worker. Main thread."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._watched: dict[str, tuple[Slot, int, torch.Tensor]] = {}  # until they change again: version and value

    def after(self, capsule: Capsule, moved: Mapping[str, Slot], rank: int, step: int) -> None:
        """After the update of `step`, which changed the buffers `moved` for the first time.

        Raises:
            KeepstepError: they are averages of this rank's own buffers; names them and what to write.
        """
        if self._watched:
            self._check_again(capsule, rank, step)
        if not moved:
            return
        differ = self._unlike_first(moved, rank, step)
        for name in differ:
            buffer = buffer_in(moved[name])
            if buffer is not None:
                self._watched[name] = moved[name], buffer._version, buffer.clone()
        if differ:
            self._say(differ)

    def _check_again(self, capsule: Capsule, rank: int, step: int) -> None:
        """What an update makes of this rank's values alone is made again by each; an average goes on from the last."""
        changed = []
        of_ranks = []
        for name, (slot, version, before) in list(self._watched.items()):
            now = buffer_in(slot)
            if now is None or now._version == version:
                continue
            del self._watched[name]
            own = capsule.twin(name)
            if own is not None and own.shape == now.shape == before.shape and now.is_floating_point():
                changed.append(name)
                of_ranks.append([each.detach().double().flatten() for each in (before, now, own)])
        if changed and _is_average(*(torch.cat(parts) for parts in zip(*of_ranks, strict=True))):
            raise _error(changed, rank, step)

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

    def _say(self, names: list[str]) -> None:
        if self._session.claim_once(self._session.key("released/said")):
            what = (
                f"the update leaves other values on each rank in {_listed(names)}. A replaced rank has another "
                f"rank's until the next update makes them again. To have the same write before step.commit: {_LINE}"
            )
            print(f"keepstep: {what}", file=sys.stderr)


_LINE = "for buffer in model.buffers(): torch.distributed.broadcast(buffer, 0)"


def _is_average(before: torch.Tensor, now: torch.Tensor, own: torch.Tensor) -> bool:
    """Whether `now` lies between the other two, as far as float32 can tell."""
    way, done = own - before, now - before
    if not way.any() or not done.any():
        return False
    part = float(done.dot(way) / way.dot(way))
    return 0 < part < 0.999 and float((done - part * way).norm() / done.norm()) < 0.05


def _error(names: list[str], rank: int, step: int) -> KeepstepError:
    return KeepstepError(
        f"state: the update of step {step} goes on averaging {_listed(names)}, and rank {rank} has other values "
        "there than its peers: they are averages of what forward changes on each rank (BatchNorm's statistics, with "
        "use_buffers=True). A replaced rank would go on with another rank's. Make them the same before step.commit: "
        f"{_LINE}; or convert the model with torch.nn.SyncBatchNorm.convert_sync_batchnorm"
    )


def _listed(names: list[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more buffers"
