"""NCCL for CUDA tensors, next to backend "keepstep": ids through the rootless Store, aborts, new communicators.

A collective of NCCL whose peer is gone never ends by itself: its kernel waits on the GPU, and the host waits for the
GPU. So each generation has a thread that sleeps until the agent interrupts it and then aborts the communicators of this
process, one after another (two aborts at once can deadlock). Only then the host gets out of its wait, and leaves the
step as it would on the CPU. The words of the step were sealed before, so nothing that comes out of an aborted
collective can be voted for. See docs/design/nccl.md.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
import threading
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist

from keepstep import _engine
from keepstep._errors import KeepstepError
from keepstep._session import Session, session_or_none
from keepstep.torch.distributed.backend_base import BackendBase
from keepstep.torch.distributed.hosts import form_for_process_group
from keepstep.torch.tensors import cuda

T = TypeVar("T")

LOOK_AGAIN_S = 0.05
NEWS_S = 2.0  # how long an NCCL error waits for the interruption that explains it; the same as for our own connections

# These decide whether torch's watchdogs end a process whose peer died. Here only the agent ends processes.
SURVIVE = {
    # 1 and 3 end the process, 2 aborts from the watchdog, besides our abort. 0: an error is kept until asked for.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    # Ends the process when a watchdog is busy for minutes, as it may be during an abort.
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    # The older backend's watchdog lets CUDA errors end the process; the main thread sees them anyway.
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    "TORCH_NCCL_TEARDOWN_ON_TIMEOUT": "0",
}
# Workers get it from the agent, as they would from torchrun: not the user's choice.
DEFAULTS = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}


class CudaBackend(Protocol):
    """The parts of torch's ProcessGroupNCCL (the older one) and ProcessGroupNCCL2 that are used."""

    def name(self) -> str: ...

    def abort(self) -> None: ...

    def get_error(self) -> Any: ...


def available() -> bool:
    """Whether this process can use NCCL at all."""
    return bool(dist.is_available() and dist.is_nccl_available() and torch.cuda.is_available())


def check_usable() -> None:
    """Raises unless this torch supports NCCL and backend "keepstep" in one group."""
    if not available():
        raise KeepstepError("the protected state is on a GPU, but this torch has no NCCL to reduce its gradients with")
    if issubclass(BackendBase, dist.ProcessGroup):
        raise KeepstepError(
            f"torch {torch.__version__} gives a whole process group to a backend written in Python, so NCCL cannot be "
            "beside it; state on a GPU needs torch 2.14 or newer"
        )


# ---- before a process group is made ----


def ranks_per_root(world_size: int) -> int:
    """How many ranks connect through one root when NCCL starts.

    A root serves its ranks one after another, and every rank reads the address of every root from the Store. Each costs
    about a round trip, so the sum is smallest with as many roots as ranks per root. One root is enough for 32 ranks.
    """
    return max(32, math.isqrt(world_size))


def set_environment(
    world_size: int, recoverable: bool, environment: MutableMapping[str, str] | None = None
) -> list[str]:
    """Sets the variables that NCCL's process groups read when they are made; returns what the user had set otherwise.

    Without a recoverable function nothing is aborted, so torch's own handling of errors and timeouts stays as it is
    (then a death restarts all ranks anyway).
    """
    target = os.environ if environment is None else environment
    target.setdefault("TORCH_NCCL_RANKS_PER_ROOT", str(ranks_per_root(world_size)))
    if not recoverable:
        return []
    replaced = [
        f"{name}={target[name]}"
        for name, value in SURVIVE.items()
        if target.get(name, value) not in (value, DEFAULTS.get(name))
    ]
    target.update(SURVIVE)
    return replaced


def prepare(current: Session, world_size: int) -> None:
    """`set_environment` for this process; reports on standard error what it replaced."""
    replaced = set_environment(world_size, current.recoverable)
    if replaced:
        print(
            f"keepstep: {', '.join(replaced)} would end processes that survive a fault of a peer; replaced by "
            + ", ".join(f"{name}={value}" for name, value in SURVIVE.items()),
            file=sys.stderr,
        )


# ---- finding and aborting ----


def backends() -> list[CudaBackend]:
    """NCCL's backends of this process's groups, newest group first: in the same order on all ranks. Any thread."""
    c10d = importlib.import_module("torch.distributed.distributed_c10d")
    found: dict[int, CudaBackend] = {}
    for group, _ in sorted(list(c10d._world.pg_names.items()), key=lambda entry: str(entry[1]), reverse=True):
        backend = of_group(group)
        if backend is not None:
            found[id(backend)] = backend
    return list(found.values())


def of_group(group: Any) -> Any:
    """NCCL's backend in `group`, without the wrappers of torch's debug mode; None if it has none."""
    try:
        backend = group._get_backend(torch.device("cuda"))
    except RuntimeError:
        return None
    while (wrapped := getattr(backend, "wrapped_pg", None)) is not None:
        backend = wrapped
    return backend if "nccl" in backend.name() else None


_aborting = threading.Lock()


class AbortWatch:
    """Aborts this process's communicators when a generation is interrupted. One per generation; owns a thread.

    Args:
        wait: returns once the generation is interrupted; raises when the job ends (then nothing is aborted).
        find: the current backends, in the order in which to abort them.
    """

    def __init__(self, wait: Callable[[], None], find: Callable[[], Iterable[CudaBackend]] = backends) -> None:
        self._wait = wait
        self._find = find
        self._left = threading.Event()
        self._aborted: dict[int, CudaBackend] = {}  # kept alive, so that its id is not reused
        self.failures: list[str] = []
        self._thread = threading.Thread(target=self._run, name="keepstep-nccl-abort", daemon=True)
        self._thread.start()

    def leave(self) -> list[CudaBackend]:
        """After the step was left: waits until everything is aborted, and returns it. Nothing is aborted later."""
        self._left.set()
        self._thread.join()
        return list(self._aborted.values())

    def _run(self) -> None:
        try:
            self._wait()
        except BaseException:
            return
        while True:
            last = self._left.is_set()
            self._abort_new()
            if last:
                return
            self._left.wait(LOOK_AGAIN_S)  # a group may just be finishing, for which this generation is over too

    def _abort_new(self) -> None:
        for backend in self._find():
            if id(backend) in self._aborted:
                continue
            self._aborted[id(backend)] = backend
            with _aborting:
                try:
                    backend.abort()
                except Exception as error:
                    # The next ones must be aborted all the same. If this one keeps a kernel running, the agent replaces
                    # this process after --interrupt-timeout.
                    self.failures.append(f"{backend.name()}: {type(error).__name__}: {error}")
                    print(f"keepstep: abort of {self.failures[-1]}", file=sys.stderr)


_watch: AbortWatch | None = None  # of the current generation, once it has a communicator


def watch(current: Session) -> None:
    """From here on an interruption of the current generation aborts this process's communicators.

    In a recoverable function; elsewhere a death ends all processes.
    """
    global _watch
    if _watch is None and current.recoverable:
        _watch = AbortWatch(current.engine.wait_interruption)


def leave() -> None:
    """The interrupted step was left: returns once none of its communicators is alive."""
    global _watch
    if _watch is not None:
        ended, _watch = _watch, None
        ended.leave()


# ---- connecting ----


class Abandoned(Exception):
    """The generation ended while NCCL connected; the thread that connects was left behind."""


def interruptible(function: Callable[[], T], interrupted: Callable[[], bool], undo: Callable[[T], object]) -> T:
    """Runs `function()` in a thread of its own, on the caller's CUDA device: NCCL cannot be aborted while it connects.

    Raises `Abandoned` as soon as `interrupted` says so. The thread goes on until NCCL notices that peers are gone, or
    with the process; if it succeeds after all, it calls `undo` with the result.
    """
    lock = threading.Lock()
    done = threading.Event()
    given_up = False
    results: list[T] = []
    errors: list[BaseException] = []
    device = torch.cuda.current_device() if cuda.in_use() else None

    def run() -> None:
        try:
            if device is not None:
                torch.cuda.set_device(device)
            result = function()
            with lock:
                results.append(result)
                late = given_up
            if late:
                undo(result)
        except BaseException as error:
            errors.append(error)
        finally:
            done.set()

    threading.Thread(target=run, name="keepstep-nccl-connect", daemon=True).start()
    while not done.wait(LOOK_AGAIN_S):
        if interrupted():
            with lock:
                if not results:
                    given_up = True
                    raise Abandoned("the generation ended while NCCL connected")
    if errors:
        raise errors[0]
    return results[0]


def before_group(current: Session, world_size: int) -> None:
    """Called in a rank of ``keepstep run`` before a process group of any backend is made."""
    if dist.is_nccl_available() and not install():
        # Releases of torch without plug-ins for NCCL: what a group will have is not known here.
        prepare(current, world_size)
        watch(current)


def install() -> bool:
    """Makes torch create NCCL's backends so that an interruption gets through. Returns whether this torch can.

    Releases that keep NCCL among the plug-ins (2.15) connect when a group is made; older ones at its first collective.
    """
    c10d = importlib.import_module("torch.distributed.distributed_c10d")
    plugins: dict[str, Any] = getattr(dist.Backend, "_plugins", {})
    for name in ("NCCL", "NCCL2", "NCCL-LAZY"):
        if name not in plugins:
            # What torch's entry point of that name does, without looking through all installed packages for it.
            register = getattr(c10d, f"_register_builtin_{name.lower().replace('-', '_')}_backend", None)
            if register is not None:
                register()
        plugin = plugins.get(name)
        if plugin is not None and plugin.extended_api and not hasattr(plugin.creator_fn, "_original"):
            plugins[name] = plugin._replace(creator_fn=_creator(plugin.creator_fn))
    return "NCCL" in plugins


def _creator(original: Callable[..., Any]) -> Callable[..., Any]:
    def create(options: Any, backend_options: Any = None) -> Any:
        current = session_or_none()
        if current is None:
            return original(options, backend_options)
        form_for_process_group(current)
        prepare(current, current.need_rank("init_process_group").world_size)
        watch(current)
        try:
            return interruptible(
                lambda: original(options, backend_options),
                current.engine.interrupted,
                lambda backend: None if backend is None else backend.abort(),
            )
        except Abandoned as error:
            raise _engine.Interrupted(str(error)) from None

    create._original = original  # type: ignore[attr-defined]
    return create


# ---- errors ----


def wait_for_news(error: BaseException, interrupted: Callable[[], bool], limit_s: float = NEWS_S) -> bool:
    """Whether an error of NCCL is explained by an interruption, for which it waits a moment.

    NCCL may notice a dead peer before the agent does; then the error is not one of the user's code.
    """
    if not isinstance(error, dist.DistBackendError):
        return interrupted()
    waited = threading.Event()
    for _ in range(int(limit_s / LOOK_AGAIN_S)):
        if interrupted():
            return True
        waited.wait(LOOK_AGAIN_S)
    return interrupted()
