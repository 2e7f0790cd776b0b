"""A spare's rehearsal: runs its first step up to the first ``step.commit`` before it waits for a rank.

A process's first step costs more than later ones: memory is allocated, kernels are chosen, DDP is built,
``torch.compile`` compiles. A spare does that before any rank waits for it. It enters the user's function as the last
rank of the job's world (never as rank 0, which writes files), computes at most two micro-batches of step 1, and leaves
at the commit, as in an interruption. Its collectives have no peers (`rehearsal_comm`). Then everything it touched is
restored and compared.

A rehearsal only saves time: if anything goes wrong in it, the spare waits without one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import resource
import signal
import struct
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch

from keepstep import _engine
from keepstep._engine import Assignment
from keepstep._errors import Interruption, KeepstepError
from keepstep._inject import Injector
from keepstep._options import RecoverOptions
from keepstep._session import Session
from keepstep.torch.distributed import nccl
from keepstep.torch.distributed.rehearsal_comm import RehearsalCommunicator
from keepstep.torch.distributed.work import Completer, GroupOps
from keepstep.torch.integrity import checks
from keepstep.torch.recovery import health, rehearsal_objects
from keepstep.torch.state.update import Snapshot

if TYPE_CHECKING:
    from keepstep.torch.runtime.run import Run

LIMIT_S = 300  # of a rehearsal; the coordinator waits 600 s for a worker to park
AGAIN_S = 5  # after the limit, for functions that catch the exception that ends them
MICRO_BATCHES = 2  # one that accumulates and one that synchronizes
_SAID = "job/rehearsal/said"
_SPOILT = "job/rehearsal/spoilt"


class Over(BaseException):
    """Leaves the user's function at the end of a rehearsal; empty if all went well, else what went wrong.

    A ``BaseException`` like `Interruption`: the function must let it pass.
    """


class NotWorthIt(Over):
    """Nothing in this function's first step is expensive enough; not reported."""


@dataclass(frozen=True)
class Returned:
    """The function returned before it asked for a rank."""

    value: Any


def compiles() -> bool:
    """Whether ``torch.compile`` was called in this process."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    # A private name: if it is missing we do not know, and a rehearsal does no harm.
    backends: dict[int, Any] = getattr(frames, "cached_backends", {0: True})
    return frames is not None and any(backend is not None for backend in backends.values())


def wanted(session: Session, options: RecoverOptions) -> bool:
    """Whether this process is to rehearse."""
    if options.rehearse is False or not session.spare or session.assignment is not None:
        return False
    if session.welcome.world < 2:
        return False  # the only rank is rank 0
    if torch.cuda.device_count() > 0 or nccl.available():
        return False  # GPU memory belongs to the ranks that train, and NCCL without peers is untested
    return _count(session, _SPOILT) == 0


def rehearse(run: Run, function: Callable[[], Any], options: RecoverOptions) -> Returned | None:
    """Calls `function` for its first entry; once something needs a rank, this becomes a rehearsal.

    Exceptions before that are raised here. Afterwards this process is as before, and has no rank.

    Raises:
        SystemExit: the protected state could not be restored; the process is unusable and has reported it.
    """
    rehearsal = Rehearsal(run, only_compiled=options.rehearse is None)
    run._session.rehearsal = rehearsal
    why: str | None = ""
    try:
        result = function()
        if not rehearsal.begun:
            return Returned(result)
        why = "the function returned before its first step.commit"
    except NotWorthIt:
        why = None
    except Over as over:
        why = str(over)
    except _engine.JobEnded:
        raise
    except (Exception, SystemExit, Interruption, _engine.Interrupted) as error:
        if not rehearsal.begun:
            raise
        why = f"{type(error).__name__}: {error}"
    finally:
        if rehearsal.begun:
            rehearsal.leave()
        run._session.rehearsal = None
    # The exception is gone here, and so are the frames that hold wrappers and graphs.
    rehearsal.put_back(why)
    return None


class Rehearsal:
    """This process's rehearsal. `begun`: the function runs as a rank that does not exist."""

    def __init__(self, run: Run, only_compiled: bool) -> None:
        self._run = run
        self._only_compiled = only_compiled
        self._session = run._session
        self.begun = False
        self.entered = False  # the function has protected its objects
        self.assignment: Assignment | None = None  # while it runs
        self._ops: GroupOps | None = None
        self._keys: dict[str, bytes] = {}  # of the Store
        self._surroundings = contextlib.ExitStack()
        self._snapshot: Snapshot | None = None
        self._digests: dict[str, int] = {}
        self._values: dict[str, Any] = {}
        self._seconds = 0.0

    # ---- by the session: something asks for a rank ----

    def begin(self) -> None:
        """From here on this process acts as the last rank of the world."""
        self.begun = True
        self._seconds = time.monotonic()
        session = self._session
        world = session.welcome.world
        because = "a spare rehearses a step before it waits for a rank"
        self.assignment = Assignment(world - 1, world, "rehearsal", because)
        self._random = _RandomState()
        self._injector, session.injector = session.injector, Injector(session, [], listens=False)
        self._variables = _rank_variables(session.welcome.rank_variables, world)
        os.environ.update(self._variables)
        # What it prints would appear twice.
        nothing = self._surroundings.enter_context(open(os.devnull, "w"))
        self._surroundings.enter_context(contextlib.redirect_stdout(nothing))
        self._surroundings.enter_context(contextlib.redirect_stderr(nothing))
        self._surroundings.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        self._surroundings.enter_context(rehearsal_objects.answered())
        self._surroundings.enter_context(_memory_limit())
        if threading.current_thread() is threading.main_thread():
            self._surroundings.enter_context(_alarm(LIMIT_S))

    # ---- by the run ----

    def enter(self) -> None:
        """The function has protected its objects and needs its peers: saves what is restored later."""
        if self.entered:
            return
        registry = self._run._registry
        self._run._entries.get_ready()
        flat = registry.flatten()
        frozen = registry.frozen_names()  # too large to copy; built again if they change all the same
        copied = [tensor for name, tensor in flat.tensors.items() if name not in frozen]
        size = sum(tensor.numel() * tensor.element_size() for tensor in copied)
        free = health.available_bytes()
        if 4 * size > free:  # the copy, gradients and buckets, and what forward keeps
            raise Over(f"the protected state has {size >> 20} MiB and {free >> 20} MiB of memory are free")
        self._snapshot = Snapshot(registry, leave_out=frozen)
        self._digests = checks.digests(registry, set())
        self._values = flat.values
        self.entered = True

    def begin_steps(self) -> None:
        """The loop over steps begins; ends the rehearsal if it would save nothing."""
        if self._only_compiled and not compiles():
            raise NotWorthIt

    def host(self) -> RehearsalHost:
        """The host of a process group that the function makes."""
        if self._ops is None:
            assert self.assignment is not None
            made = RehearsalCommunicator(self.assignment.rank, self.assignment.world_size)
            comm = cast(_engine.Communicator, made)
            self._ops = GroupOps(comm, Completer(comm))
        return RehearsalHost(self._ops)

    def ask(self, op: str, key: str, value: bytes) -> tuple[bool, bytes]:
        """The Store of a world without peers: a wait ends at once; a key that peers would set is an error."""
        keys = self._keys
        known = key in keys
        if op == "set":
            keys[key] = value
        elif op == "get" and not known:
            raise RuntimeError(
                f"a rehearsal has no peers, and something waits for one to set '{key}' in the Store: perhaps a process "
                "group of another backend than keepstep's"
            )
        elif op == "add":
            keys[key] = str(int(keys.get(key, b"0")) + int(value)).encode()
        elif op == "compare_set":
            length, _, rest = value.partition(b":")
            expected, desired = rest[: int(length)], rest[int(length) :]
            if (keys[key] == expected) if known else not expected:
                keys[key] = desired
            return True, keys.get(key, expected)
        elif op == "check":
            return known, b""
        elif op == "delete":
            return keys.pop(key, None) is not None, b""
        elif op == "count":
            return True, str(len(keys)).encode()
        return True, keys.get(key, b"")

    # ---- afterwards ----

    def leave(self) -> None:
        """The function was left: from here on it sees the real world again."""
        self._surroundings.close()
        for name in self._variables:
            os.environ.pop(name, None)
        self._session.injector = self._injector

    def put_back(self, why: str | None) -> None:
        """Restores everything; when the process parks, tells the agent how it went, unless that is None."""
        run = self._run
        protected = dict(run._registry.objects)
        try:
            if self._ops is not None:
                self._ops.completer.close()
                self._ops.release()
            run._entries.leave_rehearsal()
            changed = self._restore()
        except Exception as error:
            changed = {f"{type(error).__name__}: {error}": list(protected)}
        run._registry.objects.clear()  # the next entry protects them again
        self._random.put_back()
        _give_memory_back()
        if changed:
            why = self._build_again(changed, protected)
        if why is None:
            return
        seconds = time.monotonic() - self._seconds
        self._session.rehearsed = (not why, seconds, why[:2000])
        if why and _count(self._session, _SAID, 1) == 1:
            print(
                f"keepstep: a spare could not rehearse its first step: {why}. Spares wait without it, and the first "
                "step after a fault takes longer; run.rehearsing tells the function, "
                "@keepstep.recoverable(rehearse=False) leaves it out.",
                file=sys.stderr,
            )

    def _restore(self) -> dict[str, list[str]]:
        """Restores the protected state; returns what still differs, with the objects it belongs to."""
        if self._snapshot is None:
            return {}
        try:
            if not self._changed():
                return {}
            self._snapshot.restore()
            return {name: [name.partition("/")[0]] for name in self._changed()}
        finally:
            self._snapshot = None

    def _changed(self) -> list[str]:
        registry = self._run._registry
        digests, values = checks.digests(registry, set()), registry.flatten().values
        before = self._digests
        tensors = {name for name in digests.keys() | before.keys() if digests.get(name) != before.get(name)}
        others = {name for name in values.keys() & self._values.keys() if not _same(values[name], self._values[name])}
        return sorted(tensors | others | (values.keys() ^ self._values.keys()))

    def _build_again(self, changed: dict[str, list[str]], protected: dict[str, Any]) -> str:
        """Forgets everything, so that ``run.setup`` builds it again; returns what to report."""
        _count(self._session, _SPOILT, 1)
        what = f"it changed {', '.join(list(changed)[:8])}, which could not be put back"
        spoilt = Spoilt(what, [protected.get(name) for names in changed.values() for name in names])
        self._run._entries.build_again(spoilt)
        return f"{what}; run.setup builds it again"


@dataclass(frozen=True)
class Spoilt:
    """Protected objects that a rehearsal changed for good."""

    what: str
    objects: list[Any]

    def refuse(self, session: Session, fields: dict[str, Any]) -> None:
        """Ends this process if one of them is protected again: then build() returns an object made elsewhere."""
        for name, item in fields.items():
            if any(item is spoilt for spoilt in self.objects):
                what = (
                    f"{self.what} (build() returns the same '{name}' again, made somewhere else); the spares after it "
                    "wait without a rehearsal (@keepstep.recoverable(rehearse=False) leaves it out)"
                )
                health.end_unfit(session, health.Unfit("rehearsal", what, "the state as it was"), counts=False)


class RehearsalHost:
    """A `keepstep.torch.distributed.hosts.Host` without peers."""

    def __init__(self, ops: GroupOps) -> None:
        self._ops = ops

    def enter(self, what: str) -> tuple[GroupOps, int]:
        return self._ops, 1

    def interruption(self, what: str) -> BaseException | None:
        return None

    def after_allreduce(self) -> None:
        pass

    def release_group(self, group: int, generation: int) -> None:
        pass

    def abort(self, because: str) -> None:
        raise KeepstepError("a process group of `keepstep run` is interrupted by its agent, not by dist.abort")

    def close(self) -> None:
        pass


class _RandomState:
    """The random state of torch (all devices in use), random, and numpy if imported."""

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
        self._python = random.getstate()
        numpy = sys.modules.get("numpy")
        self._numpy = None if numpy is None else numpy.random.get_state()

    def put_back(self) -> None:
        torch.set_rng_state(self._torch)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)


def _give_memory_back() -> None:
    """The C library keeps what was freed, here as much as the state once more, for as long as the spare waits."""
    with contextlib.suppress(AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def _alarm(seconds: float) -> Any:
    """Ends a rehearsal that waits for ever, unless user code sets an alarm itself."""

    def over(*_: Any) -> NoReturn:
        raise Over(f"it took longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _memory_limit() -> Any:
    """Makes allocations beyond the available memory fail in a rehearsal, to protect the machine."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with open("/proc/self/status", encoding="ascii", errors="replace") as lines:
        mine = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:")), 0)
    limits = [limit for limit in (*before, mine + health.available_bytes()) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _rank_variables(names: list[str], world: int) -> dict[str, str]:
    last_local = str(int(os.environ.get("LOCAL_WORLD_SIZE", "1")) - 1)
    known = {
        "RANK": str(world - 1),
        "ROLE_RANK": str(world - 1),
        "LOCAL_RANK": last_local,
        "GROUP_RANK": str(int(os.environ.get("GROUP_WORLD_SIZE", "1")) - 1),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    return {name: known.get(name, "") for name in names}


def _same(mine: Any, before: Any) -> bool:
    """Whether two values of a state are equal. A number that its object stores as float32 (a GradScaler does, once
    used) may be rounded."""
    if isinstance(mine, float) and isinstance(before, float) and mine != before:
        with contextlib.suppress(OverflowError):
            return struct.pack("<f", mine) == struct.pack("<f", before)
        return False
    return bool(mine == before)


def _count(session: Session, key: str, add: int = 0) -> int:
    """A counter of the whole job."""
    answered, _, ok, value = session.store("add", key, str(add).encode(), -1, ends_with_generation=False)
    return int(value) if answered and ok else 0
