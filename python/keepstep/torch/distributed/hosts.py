"""Where a process group's communicator comes from, and what happens when it is interrupted.

There are two kinds. A rank of ``keepstep run`` gets a new communicator with every generation, and interrupted
operations are cut short without an error (the loop raises the interruption). A rank that another launcher started has
one communicator for the life of the process group; there is no recovery, so an interrupted operation is an error.

Threads that the user's code starts get `_engine.Interrupted` instead (side_threads.py), because no loop raises it for
them.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import uuid
from typing import Any, Protocol

from keepstep import _engine, _node
from keepstep._errors import KeepstepError
from keepstep._session import Session, session_or_none
from keepstep.torch.current_run import current, current_step
from keepstep.torch.distributed.side_threads import SideThreads, in_side_thread
from keepstep.torch.distributed.work import Completer, GroupOps


class Host(Protocol):
    """What a backend needs from its environment."""

    def enter(self, what: str) -> tuple[GroupOps, int]:
        """The communicator for the operation `what`, and the generation it belongs to."""

    def interruption(self, what: str) -> BaseException | None:
        """What an interrupted operation raises; None if it completes without an error."""

    def after_allreduce(self) -> None:
        """Called after every all_reduce was started."""

    def release_group(self, group: int, generation: int) -> None:
        """Frees the slot of a sub-group."""

    def abort(self, because: str) -> None:
        """Interrupts the communicator for all its ranks."""

    def close(self) -> None:
        """The process group is being destroyed."""


class Communication:
    """The communicator of the current generation and what belongs to it; swapped as a whole."""

    def __init__(self) -> None:
        self.current: GroupOps | None = None
        self.generation = 0
        self.side_threads = SideThreads()

    def attach(self, current_session: Session) -> None:
        """Takes the communicator of the generation that this process just formed."""
        comm = current_session.engine.communicator()
        assert current_session.assignment is not None
        self.current = GroupOps(comm, Completer(comm))
        self.generation = current_session.assignment.generation

    @property
    def cut_short(self) -> bool:
        """Whether a collective of this generation was; NCCL's do not count."""
        return self.current is None or self.current.cut_short

    def detach(self) -> None:
        """Releases it: its arena belongs to the next generation."""
        if self.current is not None:
            current, self.current = self.current, None
            current.completer.close()
            current.release()
            self.side_threads.leave_generation()


communication = Communication()


class ShardBuilding:
    """Collectives while ``run.setup(sharded=True)`` builds. They do nothing: each process computes the same."""

    def __init__(self) -> None:
        self._ops: GroupOps | None = None
        self._openings = 0

    def operations(self, session: Session) -> tuple[GroupOps, int]:
        """With a number that no generation has."""
        if self._ops is None:
            self._openings += 1
            from keepstep.torch.distributed.rehearsal_comm import RehearsalCommunicator

            assert session.assignment is not None
            comm: Any = RehearsalCommunicator(session.assignment.rank, session.assignment.world_size)
            self._ops = GroupOps(comm, Completer(comm))
        return self._ops, -self._openings

    def close(self) -> None:
        """What is built afterwards may have another rank."""
        if self._ops is not None:
            ops, self._ops = self._ops, None
            ops.completer.close()
            ops.release()


shard_building = ShardBuilding()


class RunHost:
    """A rank of ``keepstep run``."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def enter(self, what: str) -> tuple[GroupOps, int]:
        if self._session.building_with_rank:
            return shard_building.operations(self._session)
        side = in_side_thread()
        if side:
            communication.side_threads.enter(what)
        if self._session.engine.updating() and not side:  # only the update's own thread
            raise KeepstepError(
                f"{what} inside step.commit(...): after the vote an update must be local, or ranks could end up with "
                "different states. Do it before step.commit, or say step.commit(..., communicates=True) if the "
                "optimizer itself communicates, or has a closure that does."
            )
        if communication.current is None and not side and (run := current()) is not None:
            run._require_peers(what)
        ops = communication.current
        if ops is None or (side and ops.comm.interrupted()):
            communication.side_threads.told()
            raise _engine.Interrupted(f"{what}: the generation ended")
        return ops, communication.generation

    def interruption(self, what: str) -> BaseException | None:
        side = in_side_thread()
        if side:
            communication.side_threads.told()
        if self._session.engine.finished:
            return RuntimeError(
                f"{what} after the training function had returned: another rank is gone, so ranks cannot communicate "
                "any more. Do what needs all ranks inside the function"
            )
        if side or what in ("barrier", "monitored_barrier"):
            return _engine.Interrupted(f"the generation ended during a {what}")
        return None

    def after_allreduce(self) -> None:
        if self._session.injector.active:
            self._session.injector.at("allreduce", current_step())

    def release_group(self, group: int, generation: int) -> None:
        current = communication.current
        if current is not None and communication.generation == generation:
            with contextlib.suppress(_engine.Interrupted):
                current.comm.release_group(group)

    def abort(self, because: str) -> None:
        raise KeepstepError("a process group of `keepstep run` is interrupted by its agent, not by dist.abort")

    def close(self) -> None:
        pass  # the communicator belongs to the generation


class NodeHost:
    """A rank that torchrun, srun or a test started; its node's agent holds the shared memory."""

    def __init__(self, link: _engine.NodeLink, world: int) -> None:
        self.world = world
        self.link = link
        comm = link.communicator()
        self._ops: GroupOps | None = GroupOps(comm, Completer(comm))
        atexit.register(self._at_exit)

    @staticmethod
    def join(store: Any, rank: int, world: int, timeout_ms: int) -> NodeHost:
        """The communicator of the ranks that share `store`. Waits for all of them."""
        mine = f"{uuid.uuid4().hex}@{_machine()}"
        agreed = store.compare_set("keepstep/job", "", mine).decode()
        job, machine = agreed.split("@")
        if machine != _machine():
            raise KeepstepError(
                f'rank {rank}: backend="keepstep" without `keepstep run` works within one machine; another rank runs '
                "on a different one"
            )
        link = _node.link(job)
        try:
            link.join("world", rank, world, timeout_ms)
        except RuntimeError as error:
            link.close()
            raise RuntimeError(f"init_process_group: {error}") from None
        return NodeHost(link, world)

    @property
    def open(self) -> bool:
        return self._ops is not None

    def enter(self, what: str) -> tuple[GroupOps, int]:
        if self._ops is None:
            raise RuntimeError(f"{what}: the process group was destroyed")
        return self._ops, 1

    def interruption(self, what: str) -> BaseException | None:
        return RuntimeError(f"{what} was interrupted: {self.link.why_interrupted()}")

    def after_allreduce(self) -> None:
        pass

    def release_group(self, group: int, generation: int) -> None:
        if self._ops is not None:
            self._ops.comm.release_group(group)

    def abort(self, because: str) -> None:
        self.link.abort(because)

    def _at_exit(self) -> None:
        """The program ends without destroying the process group.

        After an uncaught exception the others would wait for this rank for ever, so they are told.
        """
        failure = getattr(sys, "last_value", None)
        if failure is not None:
            self.link.abort(f"it ended with {type(failure).__name__}: {failure}")
        self.close()

    def close(self) -> None:
        if self._ops is None:
            return
        atexit.unregister(self._at_exit)
        ops, self._ops = self._ops, None
        if ops.outstanding():
            self.link.abort("the process group was destroyed with operations under way")
        ops.completer.close()
        ops.release()
        self.link.close()


def _machine() -> str:
    """Identifies a machine, or rather its kernel."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip() + str(os.getuid())


_world: NodeHost | None = None


def form_for_process_group(session: Session) -> None:
    """Called when a process group is made: from here on this process needs a rank and its peers."""
    run = current()
    if run is not None and session.recoverable:
        run._form("init_process_group")
    else:
        session.form_plain()
        if communication.current is None:
            communication.attach(session)


def host_for(options: Any, timeout_ms: int) -> tuple[Host, bool]:
    """The host of a new process group, and whether the group is all of the host's world."""
    global _world
    ranks = [] if options.group_id == "0" else list(options.global_ranks_in_group)
    session = session_or_none()
    if session is not None:
        form_for_process_group(session)
        if session.rehearsing:
            return session.rehearsal.host(), not ranks
        return RunHost(session), not ranks
    if _world is not None and _world.open and ranks and max(ranks) < _world.world:
        return _world, False
    host = NodeHost.join(options.store, options.group_rank, options.group_size, timeout_ms)
    if not ranks:
        _world = host
    return host, True
