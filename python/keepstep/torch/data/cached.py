"""`cached`: batches of any loader, loaded once per node and read by all its ranks without a copy."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch.distributed as dist

from keepstep import _engine
from keepstep._errors import KeepstepError
from keepstep._session import session_or_none
from keepstep.torch.data import loader_process, ring_slot
from keepstep.torch.data.loader_process import END, ERROR, Beginning


def cached(
    loader: Iterable[Any],
    ahead: int = 10,
    behind: int = 2,
    *,
    limit_bytes: int | None = None,
    name: str = "data",
    seed: int | None = None,
) -> CachedLoader:
    """Batches of `loader` out of a ring in shared memory, filled by one process per node.

    `loader` must yield the same batches in the same order on every rank, not a rank's share. Pass the result to
    `run.steps`, where each batch is one micro-batch, or iterate it: then each rank gets every ``world_size``-th batch.
    Works under ``keepstep run``, torchrun, srun and alone.

    Tensors and arrays of a batch view shared pages; writing into one in place changes this rank's copy of the page
    only. A view is shared for `behind` rounds after its own, and becomes a copy if it is kept longer.

    Args:
        loader: a DataLoader, or any iterable that yields the same each time it is iterated: tensors, NumPy arrays,
            numbers, strings, bytes and None in dicts, lists and tuples. If its process dies, a loader with
            ``state_dict`` and ``load_state_dict`` resumes; any other runs forward from the start of the epoch.
        ahead: how many rounds to load before the ranks need them. A round is a step of `run.steps`, or one batch for
            each rank.
        behind: how many rounds to keep after the ranks used them, for redone steps.
        limit_bytes: the most shared memory for batches; None: no limit.
        name: distinguishes this loader from others of the same job.
        seed: for the loader's random numbers in each epoch; None: the job's seed, or 0.

    Raises:
        KeepstepError: an argument is invalid.
    """
    frame = sys._getframe(1)
    return CachedLoader(
        loader, ahead, behind, limit_bytes, name, seed, where=f"{frame.f_code.co_filename}:{frame.f_lineno}"
    )


class CachedLoader:
    """The result of `cached`. Use it from the main thread of a rank.

    Iterating it yields the rest of the current epoch; a loop that was left resumes there.

    Attributes:
        position: items (batches of the loader) that all ranks have used, over all epochs.
        loader: as given. Only the loader process iterates it.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        ahead: int,
        behind: int,
        limit_bytes: int | None,
        name: str,
        seed: int | None,
        where: str,
    ) -> None:
        if not hasattr(loader, "__iter__"):
            raise KeepstepError(f"cached: the loader is a {type(loader).__qualname__}, which cannot be iterated")
        if not (1 <= ahead <= _MAX_ROUNDS and 0 <= behind <= _MAX_ROUNDS):
            raise KeepstepError(
                f"cached: ahead={ahead} is 1 to {_MAX_ROUNDS:,} rounds, behind={behind} 0 to {_MAX_ROUNDS:,}"
            )
        if limit_bytes is not None and not 1 <= limit_bytes < 1 << 63:
            raise KeepstepError(
                f"cached: limit_bytes={limit_bytes} is no room for anything, or no size; None is no limit"
            )
        _refuse_slices(loader)
        self.loader = loader
        self.position = 0
        self._ahead = ahead
        self._behind = behind
        self._limit = limit_bytes or 0
        self._name = name
        self._where = where
        current = session_or_none()
        self._seed = seed if seed is not None else 0 if current is None else current.welcome.seed
        self._beginning: Beginning | None = None
        other = _newest.get(name)
        if other is not None and other._where != where:
            raise KeepstepError(
                f"cached: there is a loader '{name}' already, made at {other._where}; give this one a name= of its own"
            )
        _newest[name] = self

    # ---- for run.steps ----

    def enter_round(self, position: int, size: int) -> None:
        """The ranks start on items `position` to `position` + `size`; older ones are kept only for `behind`."""
        place = self._place()
        place.join((size, size * self._ahead, size * self._behind, self._limit), position)
        self.position = position
        place.keep_loading(self._start)

    def batch_at(self, number: int) -> Any:
        """Item `number` of the round; waits for it."""
        place = self._place()
        place.wait(number, self._start)
        return place.batch(number)

    # ---- as a loader ----

    def __iter__(self) -> Iterator[Any]:
        return self._rounds(None)

    def rounds(self, count: int) -> Iterator[Any]:
        """The next `count` batches of this rank, across epochs."""
        return self._rounds(count)

    def _rounds(self, count: int | None) -> Iterator[Any]:
        rank, world = _rank_and_world()
        place = self._place()
        epoch: int | None = None
        done = 0
        while count is None or done < count:
            self.enter_round(self.position, world)
            place.wait(self.position + world - 1, self._start)
            items = [place.item(self.position + each) for each in range(world)]
            for number, (kind, _, _) in enumerate(items, self.position):
                if kind == ERROR:
                    place.raise_error(number)
                if kind == END:
                    return  # on all ranks alike: they look at the same items
            if epoch is None:
                epoch = items[0][1]
            elif count is None and epoch != items[0][1]:
                return
            batch = place.batch(self.position + rank)
            self.position += world
            done += 1
            yield batch

    def __len__(self) -> int:
        """Batches of this rank in the rest of the current epoch."""
        items = len(self.loader)  # type: ignore[arg-type]
        left = items - self.position % items if items else 0
        return -(-left // _rank_and_world()[1])

    @property
    def world_size(self) -> int:
        """Ranks that share the batches of a plain loop."""
        return _rank_and_world()[1]

    # ---- checkpoints ----

    def state_dict(self) -> dict[str, Any]:
        """The job's position in its data, for a checkpoint; the same on all ranks."""
        if self.position == 0:
            return {"position": 0, "epoch": 0, "index": 0, "loader": None}
        place = self._place()
        try:
            _, epoch, index = place.item(self.position - 1)
        except KeepstepError:
            begun = self._beginning
            if begun is not None and begun.position == self.position:
                return {"position": begun.position, "epoch": begun.epoch, "index": begun.index, "loader": begun.state}
            raise KeepstepError(
                f"cached: batch {self.position - 1} is gone, and with it what a checkpoint needs; use behind=1 at least"
            ) from None
        state = place.state(self.position - 1)
        return {"position": self.position, "epoch": epoch, "index": index + 1, "loader": state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where `state_dict` was taken, with any number of ranks."""
        position, epoch, index = (state.get(key) for key in ("position", "epoch", "index"))
        if any(type(each) is not int or each < 0 for each in (position, epoch, index)):
            raise KeepstepError(f"cached: {str(state)[:200]} is no state of a cached loader")
        assert isinstance(position, int) and isinstance(epoch, int) and isinstance(index, int)
        self.position = position
        self._beginning = Beginning(position, epoch, index, state.get("loader"))

    # ---- counters ----

    @property
    def waits(self) -> int:
        """How often a batch was not ready in this process."""
        return self._place().waits

    @property
    def waited_s(self) -> float:
        """How long this process waited for batches, in all."""
        return self._place().waited_s

    def _place(self) -> ring_slot.RingSlot:
        return ring_slot.slot(self._name)

    def _start(self, ring: _engine.Ring, fd: int) -> None:
        loader_process.start(self.loader, ring, fd, self._seed, self._beginning)


_MAX_ROUNDS = 1 << 16  # once their size is known, the ring says how many it can hold
_newest: weakref.WeakValueDictionary[str, CachedLoader] = weakref.WeakValueDictionary()


def _refuse_slices(loader: Any) -> None:
    for sampler in loader_process.samplers_of(loader):
        replicas = getattr(sampler, "num_replicas", 1)
        if isinstance(replicas, int) and replicas > 1:
            raise KeepstepError(
                f"cached: the loader has a {type(sampler).__qualname__} with num_replicas={replicas}, which yields one "
                "rank's share. Leave it out: the loader yields the global order, and the ranks slice it"
            )


def _rank_and_world() -> tuple[int, int]:
    current = session_or_none()
    if current is not None:
        assignment = current.need_rank("a cached loader")
        return assignment.rank, assignment.world_size
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
