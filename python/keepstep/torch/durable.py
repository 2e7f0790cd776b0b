"""``run.checkpoint``: the protected state to disk or S3, every so many steps, while training goes on; and back.

At a save each rank's state is copied in the background while the next step computes, then written by a thread of this
process as a DCP checkpoint (`keepstep.torch.checkpoint`). Ranks agree over the job's Store, so collectives of the
training are not touched; a fault while they do cancels the save, and the next step that is due makes another. Whoever
starts the job again begins with the newest complete checkpoint.
"""

from __future__ import annotations

import contextlib
import ctypes
import pickle
import sys
import threading
import time
import uuid
import warnings
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

from keepstep._errors import Interruption, KeepstepError
from keepstep._messages import MessageType
from keepstep._session import Assignment, Session
from keepstep.torch import durable_state as states
from keepstep.torch import durable_values, sharding
from keepstep.torch.capsule import Capsule
from keepstep.torch.memory import dense
from keepstep.torch.registry import Registry

LOOK_MS = 500


class Cancelled(Exception):
    """The generation ended, or a rank failed, while the ranks agreed on a save."""


class Exchange:
    """What the ranks of one save tell each other, over the Store."""

    def __init__(self, session: Session, given: Assignment, name: str) -> None:
        self._session = session
        self._rank = given.rank
        self._world = given.world_size
        self._identity = (given.term, given.generation)
        self._prefix = f"{given.generation}/keepstep-checkpoint/{name}"  # the keys go with the generation

    def _ask(self, op: str, key: str, value: bytes = b"") -> bytes:
        while True:
            # In short waits: who asks only when the next generation is there already is interrupted by nothing.
            answered, interrupted, _, result = self._session.store(op, f"{self._prefix}/{key}", value, LOOK_MS)
            if answered:
                return result
            now = self._session.assignment
            if interrupted or now is None or (now.term, now.generation) != self._identity:
                raise Cancelled

    def gather(self, what: str, mine: Any) -> list[Any] | None:
        """On rank 0 what each rank gave, in their order; None elsewhere. What fails on any rank fails on rank 0."""
        if self._rank != 0:
            self._ask("set", f"{what}/{self._rank}", pickle.dumps(mine))
            return None
        others = [pickle.loads(self._ask("get", f"{what}/{rank}")) for rank in range(1, self._world)]
        return [mine, *others]

    def scatter(self, what: str, of_all: list[Any] | None) -> Any:
        """What rank 0 gave for this rank."""
        if of_all is None:
            return pickle.loads(self._ask("get", f"{what}/{self._rank}"))
        for rank in range(1, self._world):
            self._ask("set", f"{what}/{rank}", pickle.dumps(of_all[rank]))
        return of_all[0]


class Small(NamedTuple):
    """What each rank tells before it plans: small values, and digests of what it saves, the first time."""

    values: dict[str, Any]
    digests: dict[tuple[str, str], int]


def _not_an_error(values: list[Any]) -> list[Any]:
    for rank, value in enumerate(values):
        if isinstance(value, BaseException):
            raise KeepstepError(f"rank {rank}: {value}") from value
    return values


class Durable:
    """Where, how often, and what is under way. One per process; its thread writes, all else is the main thread's."""

    def __init__(self, session: Session, registry: Registry, url: str, every: int, keep: int | None) -> None:
        from keepstep import _checkpoint
        from keepstep.checkpoint import places

        if every < 1:
            raise KeepstepError(f"run.checkpoint(every={every}): a number of steps from 1 on is needed")
        self.url, self.every, self.keep = url, every, keep
        self._session = session
        self._registry = registry
        self._checkpoints = _checkpoint
        self._places = places
        places.open_store(url)  # what is wrong with it is told here
        self._announced = False
        self._saved = 0  # the newest version that this process knows to be there, whole
        self._compared = False  # that ranks mean the same by the same names
        self._buffers: dict[str, torch.Tensor] = {}
        self._copied = threading.Event()
        self._copied.set()
        self._thread: threading.Thread | None = None

    # ---- the beginning ----

    def announce(self) -> None:
        """By rank 0, before the first generation forms: the place is ours, and all go on from the newest checkpoint."""
        if self._announced:
            return
        self._announced = True
        from keepstep.torch.checkpoint import owners

        store = self._store()
        try:
            owners.owner_of(self.url, store, self._owner())  # another job that uses it is told of at once
            complete = [info.step for info in self._checkpoints.Catalog(store).checkpoints() if info.complete]
        except self._checkpoints.Error as error:
            raise KeepstepError(f"run.checkpoint: {error}") from None
        if complete:
            newest = max(complete)
            print(f"keepstep: goes on from step {newest} of {self.url}", file=sys.stderr)
            self._session.send(MessageType.SAVED, {"version": newest, "where": self.url})

    def load(self, version: int, capsule: Capsule) -> None:
        """Fills the protected state with that of `version`."""
        from keepstep.torch.checkpoint import LoadPlanner, Reader

        reader = Reader(self.url, step=version)
        metadata = reader.read_metadata()
        where = f"{self.url}, step {version}"
        states.check_saved(metadata, where)
        states.allocate_optimizers(self._registry, metadata)
        assert self._session.assignment is not None
        # Buffers that the update changes were saved like parameters; a fresh capsule does not know of them yet.
        tensors = list(self._registry.flatten().tensors)
        where_of = states.paths(self._registry, tensors)
        capsule.release([name for name in tensors if ".".join(where_of[name]) in metadata.state_dict_metadata])
        state = states.live_state(self._registry, capsule.ids)
        state[states.VALUES] = ""
        kept = states.saved_capsule(metadata, self._session.assignment.rank)
        if kept is not None and not capsule.empty:
            state[kept[0]] = torch.empty(kept[1], dtype=torch.uint8)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that it loads in a single process, as it should
            dcp_load(state, storage_reader=reader, planner=LoadPlanner(), no_dist=True)
        flat = self._registry.flatten(capsule.ids)
        given = self._session.assignment
        names = states.parameter_names(self._registry)
        values = durable_values.taken(state[states.VALUES], self._registry, names, given.rank, given.world_size)
        self._registry.load_values(values, flat.tensors)
        if kept is not None and not capsule.empty:
            tensor = state[kept[0]]
            self._session.engine.save_capsule(version, ctypes.string_at(tensor.data_ptr(), tensor.numel()))
        self._saved = version

    # ---- saving: the main thread ----

    def due(self, version: int) -> bool:
        """Whether `version` is to be saved, if no rank is still busy with the save before."""
        return version % self.every == 0

    @property
    def busy(self) -> bool:
        """Whether this rank has not ended its part of the save before."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, version: int, capsule_ids: set[int], last: bool = False) -> None:
        """Saves `version`, which the protected state is at. All ranks, after the same step."""
        assignment = self._session.assignment
        assert assignment is not None
        exchange = self._exchange(f"{version}/last" if last else f"{version}/due")
        sharding.reshard(self._registry.modules())
        flat = self._registry.flatten(capsule_ids)
        # Here and not in the thread: FSDP2 puts other parameters into the modules while it computes.
        where = states.paths(self._registry, list(flat.tensors))
        same = set() if self._compared else states.same_on_all_ranks(self._registry)
        values = durable_values.named(self._registry, states.parameter_names(self._registry), flat.values)
        held = {name: dense(tensor) for name, tensor in flat.tensors.items()}
        self._copied.clear()
        self._thread = threading.Thread(
            target=self._save,
            args=(version, exchange, held, flat.dtensors, where, values, same, assignment.rank),
            name="keepstep-checkpoint",
            daemon=True,
        )
        self._thread.start()

    def wait_copied(self) -> None:
        """Before the update: nothing of the state is read any more."""
        if not self._copied.is_set():
            self._copied.wait()

    def save_last(self, version: int, capsule_ids: set[int]) -> None:
        """At the end of training, by all ranks: returns when `version` is saved, or could not be."""
        self._join()
        assert self._session.assignment is not None
        rank, world = self._session.assignment.rank, self._session.assignment.world_size
        there = [self._saved == version] * world if rank == 0 else None  # others need not know
        try:
            if self._exchange(f"{version}/there").scatter("there", there):
                return
        except Cancelled:
            raise Interruption("the generation ended before the last checkpoint") from None
        if rank == 0:
            print(f"keepstep: saves step {version} to {self.url}", file=sys.stderr)
        self.start(version, capsule_ids, last=True)
        self._join()

    def _join(self) -> None:
        """Waits for the save under way. Raises `Interruption` when the generation ends: others wait for this rank."""
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(0.1)
            if self._session.engine.interrupted():
                raise Interruption("the generation ended before a checkpoint was saved")

    def _exchange(self, name: str) -> Exchange:
        """Of this generation."""
        assert self._session.assignment is not None
        return Exchange(self._session, self._session.assignment, name)

    # ---- saving: its thread ----

    def _store(self) -> Any:
        return self._places.open_store(self.url)

    def _save(
        self,
        version: int,
        exchange: Exchange,
        held: dict[str, torch.Tensor],
        dtensors: dict[str, torch.Tensor],
        where: dict[str, tuple[str, ...]],
        values: dict[str, Any],
        same: set[str],
        rank: int,
    ) -> None:
        began = time.monotonic()
        state: dict[str, Any] | Exception
        mine = Small(values, {})
        try:
            state = self._state(version, held, dtensors, where, rank)
            compared = {name: tensor for name, tensor in self._buffers.items() if name in same}
            mine = Small(values, states.digests(compared, dtensors, where))
        except Exception as error:
            state = KeepstepError(f"{type(error).__name__}: {error}")
        finally:
            held.clear()
            self._copied.set()
        try:
            self._write(version, exchange, state, mine, rank)
            self._compared = True
        except Cancelled:
            return
        except Exception as error:
            if rank == 0:
                self._tell_failure(version, error)
            return
        if rank == 0:
            self._saved = version
            seconds = time.monotonic() - began
            with contextlib.suppress(Exception):  # the job may be over
                self._session.send(
                    MessageType.SAVED, {"version": version, "where": self.url, "seconds": round(seconds, 3)}
                )

    def _state(
        self,
        version: int,
        held: dict[str, torch.Tensor],
        dtensors: dict[str, torch.Tensor],
        where: dict[str, tuple[str, ...]],
        rank: int,
    ) -> dict[str, Any]:
        """A copy of the state as DCP sees it."""
        snapshot = self._copy(held)
        whole = {name: states.like(tensor, dtensors.get(name)) for name, tensor in snapshot.items()}
        state = states.nested(where, whole)
        capsule = self._session.engine.load_capsule(version)
        if capsule is not None:
            state[states.capsule_name(rank)] = torch.frombuffer(bytearray(capsule), dtype=torch.uint8)
        return state

    def _tell_failure(self, version: int, error: Exception) -> None:
        because = f"step {version} could not be saved to {self.url}: {error}"
        print(f"keepstep: {because}; training goes on", file=sys.stderr)
        with contextlib.suppress(Exception):
            self._session.note("not_saved", version, because)

    def _copy(self, held: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Into memory that is used again and again: fresh pages cost as much as the copy."""
        if [(n, t.shape, t.dtype) for n, t in held.items()] != [
            (n, t.shape, t.dtype) for n, t in self._buffers.items()
        ]:
            self._buffers = {name: torch.empty(t.shape, dtype=t.dtype, device="cpu") for name, t in held.items()}
        for name, tensor in held.items():
            self._buffers[name].copy_(tensor.detach())
        return self._buffers

    def _write(
        self, version: int, exchange: Exchange, state: dict[str, Any] | Exception, mine: Small, rank: int
    ) -> None:
        """What torch.distributed.checkpoint.save does, with the ranks' plans over the Store.

        Whatever fails on a rank reaches rank 0, and rank 0 answers all, so that nobody waits for ever.
        """
        planner = DefaultSavePlanner()
        writer: Any = None
        all_ranks = exchange.gather("small", mine)
        try:
            if isinstance(state, Exception):
                raise state
            if all_ranks is not None:
                states.require_same([each.digests for each in all_ranks])
                state[states.VALUES] = durable_values.merged([each.values for each in all_ranks])
            writer = self._writer(version)
            planner.set_up_planner(state, writer.storage_meta(), rank == 0)
            writer.set_up_storage_writer(rank == 0)
            local: Any = writer.prepare_local_plan(planner.create_local_plan())
        except Exception as error:
            local = KeepstepError(str(error))
        plans = exchange.gather("plan", local)
        metadata = None
        failure: Exception | None = None
        if plans is not None:
            try:
                plans, metadata = planner.create_global_plan(_not_an_error(plans))
                plans = writer.prepare_global_plan(plans)
            except Exception as error:
                failure = error
                plans = [None] * len(plans)
        plan = exchange.scatter("global", plans)
        if plan is None:
            if failure is not None:
                raise failure
            raise Cancelled
        try:
            result: Any = writer.write_data(planner.finish_plan(plan), planner).wait()
        except Exception as error:
            result = KeepstepError(str(error))
        results = exchange.gather("result", result)
        if results is not None:
            assert metadata is not None
            writer.finish(metadata, _not_an_error(results))

    def _writer(self, version: int) -> Any:
        from keepstep.torch.checkpoint import Writer

        return Writer(self.url, step=version, keep=self.keep, replace=True, job=self._owner())

    def _owner(self) -> str:
        """The same on all processes that ever are rank 0 of this job."""
        from keepstep.torch.checkpoint import owners

        named = owners.job_name()
        if named:
            return named
        # An empty expectation: set by the first that asks, told to all others.
        mine = f"job {uuid.uuid4()}".encode()
        pair = b"0:" + mine
        answered, _, _, value = self._session.store(
            "compare_set", "job/checkpoint-owner", pair, -1, ends_with_generation=False
        )
        return (value if answered and value else mine).decode()
