"""``run.checkpoint``: saves the protected state to disk or S3 at intervals while training goes on, and loads it.

At a save each rank's state is copied in the background while the next step computes. For each destination where it is
due, a thread plans a DCP checkpoint with the other ranks and hands it over to a process of the node, which writes it
even if this one dies (`keepstep.checkpoint.background`). A fault while the ranks agree cancels the save, and the next
step starts another. A job that is started again continues from the newest complete checkpoint.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
import uuid
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

from keepstep import _engine
from keepstep._destination import Destination
from keepstep._engine import Assignment
from keepstep._errors import Interruption, KeepstepError
from keepstep._session import Session
from keepstep.checkpoint import owners
from keepstep.checkpoint.destinations import open_store
from keepstep.torch.checkpoint import small_values
from keepstep.torch.checkpoint import state_dict as states
from keepstep.torch.checkpoint.exchange import Cancelled, Exchange
from keepstep.torch.checkpoint.saver import Saver
from keepstep.torch.checkpoint.settings import MAX_DESTINATIONS
from keepstep.torch.checkpoint.snapshot import Pool, Snapshot
from keepstep.torch.sharded import fsdp
from keepstep.torch.state.capsule import Capsule
from keepstep.torch.state.registry import Registry
from keepstep.torch.tensors.memory import dense

FLAG_BUSY = _engine.FLAG_FIRST_DESTINATION  # of a vote, for the first destination
FLAG_BEHIND = FLAG_BUSY << MAX_DESTINATIONS


class CheckpointManager:
    """All destinations, and the saves in progress. One per process, for the main thread."""

    def __init__(
        self, session: Session, registry: Registry, destinations: tuple[Destination, ...], sharded: Callable[[], bool]
    ) -> None:
        from keepstep import _checkpoint
        from keepstep.checkpoint.background.link import Link

        if not session.welcome.background_writer:
            raise KeepstepError("run.checkpoint: the agent of this node takes no checkpoints; its log says why")
        self.destinations = destinations
        self._session = session
        self._registry = registry
        self._sharded = sharded  # whether ranks hold different things
        self._checkpoints = _checkpoint
        self._open = open_store
        for each in destinations:
            self._open(each.url)  # its mistakes are reported here
        self._job = _job_of(session)
        self._links = [Link(session.welcome.background_writer, each.url, self._job) for each in destinations]
        for link in self._links:
            with contextlib.suppress(KeepstepError):  # a save will find out
                link.connect()  # what writes is started while the script goes on
        self._savers: list[Saver] = []  # made when this process has a rank
        self._announced = False
        self._pool = Pool()
        self._snapshot: Snapshot | None = None  # the newest

    # ---- the beginning ----

    def announce(self) -> None:
        """By rank 0, before the first generation forms: claims the destinations and finds the newest checkpoint.

        A destination that cannot be reached ends the job: it may have the newest checkpoint.
        """
        if self._announced:
            return
        self._announced = True
        found: list[tuple[int, str]] = []
        for each, link in zip(self.destinations, self._links, strict=True):
            try:
                link.claim()  # reports at once if another job uses it
                found += [(step, each.url) for step in self._complete(self._open(each.url))]
            except (KeepstepError, self._checkpoints.Error) as error:
                raise KeepstepError(f"run.checkpoint: {error}") from None
        if found:
            newest = max(step for step, _ in found)
            where = next(url for step, url in found if step == newest)
            print(f"keepstep: goes on from step {newest} of {where}", file=sys.stderr)
            self._session.engine.tell_saved(newest, generation=0, where=where)

    def _complete(self, store: object) -> list[int]:
        return [info.step for info in self._checkpoints.Catalog(store).checkpoints() if info.complete]  # type: ignore[arg-type]

    def load(self, version: int, capsule: Capsule) -> None:
        """Loads the protected state of `version` from the first destination that has all of it."""
        failures = []
        for each in self.destinations:
            try:
                if version not in self._complete(self._open(each.url)):
                    failures.append(f"{each.url} has no complete checkpoint of step {version}")
                    continue
                self._load(each.url, version, capsule)
            except CheckpointException as error:  # no Exception: DCP's own, around what a rank raised
                failures.append("; ".join(str(raised) for raised, _ in error.failures.values()))
            except (KeepstepError, self._checkpoints.Error) as error:
                failures.append(str(error))
            else:
                for failure in failures:
                    print(f"keepstep: {failure}; it was loaded from {each.url}", file=sys.stderr)
                for saver in self._all_savers():
                    saver.saved = version if saver.destination is each else 0
                return
        raise KeepstepError(
            f"run.checkpoint: step {version} cannot be loaded: {'; '.join(failures)}. To go on from an older one, "
            "remove this one (keepstep ckpt rm DESTINATION@STEP --last)"
        )

    def _load(self, url: str, version: int, capsule: Capsule) -> None:
        from keepstep.torch.checkpoint import LoadPlanner, Reader

        given = self._session.assignment
        assert given is not None
        reader = Reader(url, step=version)
        metadata = reader.open()
        states.check_saved(metadata, f"{url}, step {version}")
        written: dict[str, Any] = {states.VALUES: ""}
        load = functools.partial(dcp_load, storage_reader=reader, planner=LoadPlanner(), no_dist=True)
        names = states.parameter_names(self._registry)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that it loads in a single process, as it should
            load(written)
        values = small_values.taken(written[states.VALUES], self._registry, names, given.rank, given.world_size)
        states.allocate_optimizers(self._registry, metadata)
        states.make_room(self._registry, metadata, values)
        # Buffers that the update changes were saved like parameters; a fresh capsule does not know of them yet.
        tensors = list(self._registry.flatten().tensors)
        where_of = states.paths(self._registry, tensors)
        saved = [name for name in tensors if ".".join(where_of[name]) in metadata.state_dict_metadata]
        capsule.release(saved)
        self._registry.frozen.adopt(saved)  # another run trained them, or this one did before it was frozen
        flat = self._registry.flatten_sent(capsule.ids)
        state = states.live_state(self._registry, flat)
        kept = states.saved_capsule(metadata, given.rank)
        if kept is not None and not capsule.empty:
            state[kept[0]] = torch.empty(kept[1], dtype=torch.uint8)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            load(state)
        self._registry.load_values(values, flat.tensors)
        if kept is not None and not capsule.empty:
            tensor = state[kept[0]]
            self._session.engine.save_capsule(version, ctypes.string_at(tensor.data_ptr(), tensor.numel()))

    # ---- saving ----

    def enter(self) -> None:
        """Called in each generation before its first step: finds out what earlier processes have handed over."""
        self._all_savers()

    def flags(self) -> int:
        """This rank's vote flags: where its last save is unfinished; on rank 0, which destinations rest or lag."""
        found = 0
        first = self._given().rank == 0
        for number, saver in enumerate(self._all_savers()):
            if saver.busy or (first and saver.resting):
                found |= FLAG_BUSY << number
            elif first and saver.behind:
                found |= FLAG_BEHIND << number
        return found

    def after_step(self, version: int, flags: int, capsule_ids: set[int]) -> None:
        """Saves the current state, `version`, where it is due. Called by all ranks with the same `flags`."""
        now = []
        for number, saver in enumerate(self._all_savers()):
            due = saver.due(version)
            if flags & (FLAG_BUSY << number):
                if due:
                    saver.leave_out(version, self._given().rank)
            elif due or flags & (FLAG_BEHIND << number):
                now.append(saver)
        self._start(version, capsule_ids, now, "due")

    def _start(self, version: int, capsule_ids: set[int], savers: list[Saver], why: str) -> None:
        if not savers:
            return
        given = self._given()
        fsdp.reshard(self._registry.modules())
        flat = self._registry.flatten_sent(capsule_ids)
        # Here and not in the thread: FSDP2 puts other parameters into the modules while it computes.
        where = states.paths(self._registry, list(flat.tensors))
        compared = not self._sharded() or all(saver.compared for saver in savers)
        same = set() if compared else states.same_on_all_ranks(self._registry)
        values = small_values.named(self._registry, states.parameter_names(self._registry), flat.values)
        held = {name: dense(tensor) for name, tensor in flat.tensors.items()}

        def capsule() -> tuple[str, bytes] | None:
            saved = self._session.engine.load_capsule(version)
            return None if saved is None else (states.capsule_name(given.rank), saved)

        self._snapshot = Snapshot(self._pool, len(savers), held, flat.dtensors, where, values, same, capsule)
        for saver in savers:
            number = self._savers.index(saver)
            exchange = Exchange(self._session, given, f"{version}/{number}/{why}")
            saver.start(version, exchange, self._snapshot, copies=saver is savers[0])

    def wait_copied(self) -> None:
        """Called before the update: waits until the state is no longer read."""
        if self._snapshot is not None and not self._snapshot.copied.is_set():
            self._snapshot.copied.wait()

    def forget(self) -> None:
        """Releases what was protected: it is built again."""
        self._snapshot = None
        self._pool = Pool()

    def save_last(self, version: int, capsule_ids: set[int]) -> None:
        """Called by all ranks at the end of training: returns when `version` is saved everywhere, or has failed."""
        savers = self._all_savers()
        for saver in savers:
            saver.join()
            saver.enter(self._given())
            saver.join()
        given = self._given()
        missing = [number for number, saver in enumerate(savers) if saver.saved != version]
        try:
            # Others need not know what is saved.
            told = [missing] * given.world_size if given.rank == 0 else None
            missing = Exchange(self._session, given, f"{version}/missing").scatter("missing", told)
        except Cancelled:
            raise Interruption("the generation ended before the last checkpoint") from None
        if given.rank == 0 and missing:
            where = " and ".join(savers[number].destination.url for number in missing)
            print(f"keepstep: saves step {version} to {where}", file=sys.stderr)
        self._start(version, capsule_ids, [savers[number] for number in missing], "last")
        for saver in savers:
            saver.join()

    def _given(self) -> Assignment:
        assert self._session.assignment is not None
        return self._session.assignment

    def _all_savers(self) -> list[Saver]:
        given = self._given()
        if not self._savers:
            self._savers = [
                Saver(self._session, each, self._job, link)
                for each, link in zip(self.destinations, self._links, strict=True)
            ]
        for saver in self._savers:
            saver.enter(given)
        return self._savers


def _job_of(session: Session) -> str:
    """The same on all processes that ever are rank 0 of this job."""
    named = owners.job_name()
    if named:
        return named
    # Expected to be empty: the first to ask sets it, all others get it.
    mine = f"job {uuid.uuid4()}".encode()
    pair = b"0:" + mine
    answered, _, _, value = session.store("compare_set", "job/checkpoint-owner", pair, -1, ends_with_generation=False)
    return (value if answered and value else mine).decode()
