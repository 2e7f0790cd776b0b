"""Learned preload: imports the modules that a worker imported, without risk to the zygote or delay.

The zygote forks a **stage**, which imports the modules in the worker's order while the zygote goes on forking workers.
A stage that succeeds takes the zygote's place, with everything it imported, and forks the next stage. A stage that
became unsafe to fork, raised, died or stopped making progress is discarded with its half-done import, and the next one
leaves out that module and those that import it.

`Learning` is the zygote's side: what is left to learn, and the current stage. `Stage` is that process seen from the
zygote. `Watch` sees each import inside it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import signal
import socket
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

LIMIT_S = 120.0  # for all learning
STALL_S = 20.0  # without a message about an import
STAGE_S = 1.0  # a successful stage takes over after this: the most work that a failed later stage can lose
PAUSE_S = 5.0  # after a worker was requested, which then has the CPU to itself
_PR_SET_PDEATHSIG = 1
_SAID_AT_MOST = 20  # left-out modules that the journal names
_IMPORTS = "imports"  # how the reason starts if it is another module


def thread_count() -> int:
    return len(os.listdir("/proc/self/task"))


def cuda_is_open(folder: str = "/proc/self/fd") -> bool:
    """Whether torch or any other library started CUDA's driver in this process: then its device file is open.

    Counting devices already starts it (cuInit), long before a context exists, and CUDA then fails in all forked
    children.
    """
    for name in os.listdir(folder):
        try:
            if os.readlink(os.path.join(folder, name)).startswith("/dev/nvidia-uvm"):
                return True
        except OSError:
            pass  # already closed, such as the descriptor that lists the folder
    return False


def unsafe_to_fork() -> str:
    """Why this process must no longer be forked; empty if it may be."""
    if thread_count() != 1:
        return f"{thread_count()} threads run"
    cuda = getattr(sys.modules.get("torch"), "cuda", None)  # also None while torch itself is being imported
    if cuda_is_open() or (cuda is not None and cuda.is_initialized()):
        return "CUDA is initialized"
    return ""


@contextlib.contextmanager
def imports_kept() -> Iterator[None]:
    """Freezes imported objects, so the garbage collector of a forked worker does not visit them and copy their pages.

    The collector does not run during the imports either: they make half a million objects and hardly any garbage, and
    visiting those repeatedly takes a third of the time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class LeftOut(Exception):
    """These modules, outermost first, are not to be imported in the zygote."""

    def __init__(self, names: list[str], why: str) -> None:
        super().__init__(why)
        self.names = names
        self.why = why


class _Stop(BaseException):
    """Ends an import from inside. A module may swallow it, so `Watch.trouble` records it."""


class Watch(importlib.abc.MetaPathFinder):
    """Comes first on ``sys.meta_path``: finds nothing, but sees each module before it is imported.

    Ends an import as soon as a module inside it has made the process unsafe to fork, or is in `left_out`.
    Calls `say(depth, name)` for each module; `depth`: the number of imports around it.
    """

    def __init__(self, left_out: Sequence[str], say: Callable[[int, str], None]) -> None:
        self._left_out = frozenset(left_out)
        self._say = say
        self._under_way: list[str] = []
        self.trouble: LeftOut | None = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        while self._under_way and not _initializing(self._under_way[-1]):
            self._under_way.pop()
        why = unsafe_to_fork()
        if why or self.trouble is not None:
            self.stop(why)
        if fullname in self._left_out:
            return self._refused(fullname, path, target)
        self._say(len(self._under_way), fullname)
        self._under_way.append(fullname)
        return None

    def _refused(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None
    ) -> importlib.machinery.ModuleSpec | None:
        """Finds the module like the others, as many callers only ask if it exists. Importing it ends the import."""
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(fullname, path, target)) is not None:
                spec.loader = _Refuses(self)
                return spec
        return None

    def stop(self, why: str) -> NoReturn:
        if self.trouble is None:
            self.trouble = LeftOut(list(self._under_way), why)
        raise _Stop


class _Refuses(importlib.abc.Loader):
    """The loader of a module that is left out."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> NoReturn:
        self._watch.stop(f"{_IMPORTS} {spec.name}")

    def exec_module(self, module: types.ModuleType) -> None:
        """Never reached, but the import system requires it."""


def _initializing(name: str) -> bool:
    return bool(getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False))


def import_watched(name: str, watch: Watch) -> str:
    """Imports `name` with `watch` on sys.meta_path. Returns why the module does not exist, which is harmless.

    Raises:
        LeftOut: the process must be discarded; leave out `name` and the modules that the exception names.
    """
    watch._under_way.clear()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(name)
    except BaseException as error:
        if watch.trouble is None:
            if isinstance(error, ModuleNotFoundError) and error.name == name:
                return str(error)
            raise LeftOut(_once([name, *_modules_of(error)]), f"{type(error).__name__}: {error}") from None
    if watch.trouble is not None:
        raise LeftOut(_once([name, *watch.trouble.names]), watch.trouble.why)
    why = unsafe_to_fork()
    if why:
        raise LeftOut([name], why)
    return ""


def _modules_of(error: BaseException) -> Iterator[str]:
    """The modules whose bodies `error` passed through, outermost first."""
    frames = error.__traceback__
    while frames is not None:
        if frames.tb_frame.f_code.co_name == "<module>" and "__file__" in frames.tb_frame.f_globals:
            yield frames.tb_frame.f_globals["__name__"]
        frames = frames.tb_next


def _once(names: list[str]) -> list[str]:
    return list(dict.fromkeys(names))


class Stage:
    """The importing process, as the zygote sees it."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self.connection = connection
        self.heard = time.monotonic()
        self.good: list[str] = []
        self.under_way: list[str] = []  # from the outermost import to the innermost
        self._unread = b""

    def hear(self) -> list[Any] | None:
        """Its next message; None once it is gone."""
        try:
            data = self.connection.recv(65536)
        except OSError:
            return None
        self.heard = time.monotonic()
        *lines, self._unread = (self._unread + data).split(b"\n")
        return [json.loads(line) for line in lines] if data else None

    def signal(self, number: int) -> None:
        """Signals the stage and the processes that its imports started."""
        for send in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError):
                send(self.pid, number)

    def discard(self) -> None:
        self.connection.close()
        self.signal(signal.SIGKILL)
        os.waitpid(self.pid, 0)


class Learning:
    """What the zygote still has to import, and the stage that imports it.

    `modules`: names in the order in which a worker imported them. As in the worker, `path` is searched first and
    `environment` is set. `note` writes a line to the journal; `succeeded` tells the agent which process is the new
    zygote.
    """

    def __init__(
        self,
        modules: list[str],
        path: str,
        environment: dict[str, str],
        note: Callable[[str, str], None],
        succeeded: Callable[[int], None],
    ) -> None:
        self._modules = modules
        self._wanted = list(modules)
        self._left_out: dict[str, str] = {}
        self._path = path
        self._environment = environment
        self._note = note
        self._succeeded = succeeded
        self._take_over_after = 0  # number of imports before the harmful one; 0: no limit
        self._left_s = LIMIT_S
        self._running_since = 0.0
        self._resume_at = 0.0  # 0: not paused
        self._stage: Stage | None = None

    # ---- called by the zygote's loop ----

    def waits_for(self) -> tuple[list[socket.socket], float]:
        """Call `go_on` when one of these sockets is readable, or after this many seconds."""
        now = time.monotonic()
        if self._resume_at:
            return [], max(0.0, self._resume_at - now)
        if self._stage is None:
            return [], 0.0
        until = min(self._stage.heard + STALL_S, self._running_since + self._left_s)
        return [self._stage.connection], max(0.0, until - now)

    def pause(self) -> None:
        """A worker was requested and needs the CPU more."""
        if not self._resume_at and self._stage is not None:
            self._stage.signal(signal.SIGSTOP)
            self._left_s -= time.monotonic() - self._running_since
        self._resume_at = time.monotonic() + PAUSE_S

    def forget(self) -> None:
        """In a worker forked from the zygote: the stage is not its child."""
        if self._stage is not None:
            self._stage.connection.close()

    def go_on(self, readable: bool) -> bool:
        """`readable`: the stage has sent a message. Returns False once nothing is left to learn.

        If a stage takes over, this process ends, and the stage returns from here in its place.
        """
        if self._resume_at:
            self._resume_at = 0.0
            if self._stage is not None:
                self._stage.signal(signal.SIGCONT)
                self._stage.heard = self._running_since = time.monotonic()
            return True
        stage = self._stage
        if stage is None:
            return self._begin_stage()
        said = stage.hear() if readable else []
        for kind, *what in said or []:
            if kind == "begins":
                del stage.under_way[what[0] :]
                stage.under_way.append(what[1])
            elif kind == "good":
                stage.good.append(what[0])
                stage.under_way.clear()
            elif kind == "left out":
                self._leave_out(*what)
                return True
            elif kind == "ready":
                self._hand_over(stage)
                return True
        if said is None:
            self._leave_out(stage.under_way, "the process died in it, or in what imports it")
        elif not readable:
            stalled = time.monotonic() - stage.heard >= STALL_S
            self._leave_out(
                stage.under_way if stalled else [], f"it, or what imports it, took longer than {STALL_S:g} s"
            )
        return True

    # ---- stages ----

    def _begin_stage(self) -> bool:
        self._wanted = [name for name in self._wanted if name not in sys.modules and not self._is_left_out(name)]
        if not self._wanted or self._left_s <= 0:
            self._conclude()
            return False
        mine, its = socket.socketpair()
        zygote = os.getpid()
        pid = os.fork()
        if pid == 0:
            mine.close()
            self._import(its, zygote)
        else:
            its.close()
            with contextlib.suppress(OSError):
                os.setpgid(pid, pid)  # the stage does this too; whichever is first wins
            self._stage = Stage(pid, mine)
            self._running_since = time.monotonic()
        return True

    def _is_left_out(self, name: str) -> bool:
        """Whether `name` is left out, or a package around it, which every import of it would import."""
        while name not in self._left_out:
            name, dot, _ = name.rpartition(".")
            if not dot:
                return False
        return True

    def _leave_out(self, names: list[str], why: str) -> None:
        """Discards the stage because of `names`; the next one leaves them out."""
        assert self._stage is not None
        self._left_s -= time.monotonic() - self._running_since
        self._take_over_after = len(self._stage.good)
        self._stage.discard()
        self._stage = None
        if not names:
            self._left_s = 0.0  # time is up, or stages die whatever they import
        for outer, inner in zip(names, [*names[1:], None], strict=True):
            self._left_out.setdefault(outer, why if inner is None else f"{_IMPORTS} {inner}")

    def _hand_over(self, stage: Stage) -> None:
        """Ends this process, unless the stage died meanwhile."""
        left_s = self._left_s - (time.monotonic() - self._running_since)
        answered = b""
        with contextlib.suppress(OSError):
            stage.connection.sendall(json.dumps([left_s]).encode() + b"\n")
            answered = stage.connection.recv(1)
        if answered:
            self._succeeded(stage.pid)
            os._exit(0)
        self._leave_out([], "")

    def _conclude(self) -> None:
        # Modules that merely import one of these need no line of their own.
        causes = {name: why for name, why in self._left_out.items() if not why.startswith(_IMPORTS)}
        for name, why in list(causes.items())[:_SAID_AT_MOST]:
            self._note("preload_left_out", f"{name}: {why}")
        if len(self._left_out) > min(len(causes), _SAID_AT_MOST):
            others = len(self._left_out) - min(len(causes), _SAID_AT_MOST)
            self._note("preload_left_out", f"{others} more modules, most because they import one of those")
        if self._wanted:
            self._note("preload_left_out", f"{len(self._wanted)} modules: learning ended before their turn")
        count = sum(name in sys.modules for name in self._modules)
        if count:
            self._note("preloaded", f"{count} modules that the first worker had imported")

    # ---- in the stage ----

    def _import(self, connection: socket.socket, zygote: int) -> None:
        """Returns once this process is the zygote; otherwise the process ends here."""
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        _die_with_parent(True)
        if os.getppid() != zygote:
            os._exit(0)
        standard = [os.dup(fd) for fd in (0, 1, 2)]
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.close(null)
        before = dict(os.environ)
        os.environ.update(self._environment)
        sys.path.insert(0, self._path)

        def say(*what: Any) -> None:
            connection.sendall(json.dumps(what).encode() + b"\n")

        watch = Watch(list(self._left_out), lambda depth, name: say("begins", depth, name))
        sys.meta_path.insert(0, watch)
        began = time.monotonic()
        try:
            with imports_kept():
                good = 0
                for name in self._wanted:
                    if name in sys.modules:
                        continue
                    missing = import_watched(name, watch)
                    if missing:
                        self._left_out[name] = missing
                        continue
                    say("good", name)
                    good += 1
                    if good == self._take_over_after or time.monotonic() - began > STAGE_S:
                        break
        except LeftOut as error:
            say("left out", error.names, error.why)
            while True:
                signal.pause()  # until it is discarded, with the processes that its imports started
        sys.meta_path.remove(watch)
        with contextlib.suppress(ValueError):
            sys.path.remove(self._path)
        for name, value in self._environment.items():
            if os.environ.get(name) == value:
                os.environ.pop(name)
                if name in before:
                    os.environ[name] = before[name]
        say("ready")
        (self._left_s,) = json.loads(connection.makefile().readline())
        _die_with_parent(False)
        for fd, saved in enumerate(standard):
            os.dup2(saved, fd)
            os.close(saved)
        self._take_over_after = 0
        connection.send(b"!")
        connection.close()


def _die_with_parent(yes: bool) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL if yes else 0)
