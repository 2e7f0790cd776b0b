"""How each kind of injected fault is carried out in this process: real faults, within bounds.

docs/reference/inject.md describes what each one tests and how the job responds.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import socket
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from keepstep import _engine
from keepstep._errors import KeepstepError

if TYPE_CHECKING:
    from keepstep._engine import Fault

_MIB = 1 << 20
_OOM_MIB = 256


class InjectedFault(Exception):
    """The transient exception that ``--inject exception:...`` raises."""


@dataclass(frozen=True)
class Plan:
    """A fault that is about to be carried out. The agent is told first."""

    carry_out: Callable[[], None]
    detail: str = ""  # what exactly, if the fault's specification leaves it open


# Chooses the bit to flip, given the target ("parameter" or "gradient"), the seed and the step.
ChooseFlip = Callable[[str, int, int], Plan]


def plan(fault: Fault, job_seed: int, step: int, choose_flip: ChooseFlip | None) -> Plan:
    """How to carry out `fault` here and now. `choose_flip`: None while there is no state whose bits could flip."""
    seconds = fault.seconds
    if fault.kind == "flip":
        if choose_flip is None:
            raise KeepstepError("inject flip: nothing is protected yet; see keepstep.State")
        return choose_flip(fault.what, job_seed if fault.seed is None else fault.seed, step)
    kinds: dict[str, Callable[[], None]] = {
        "kill": lambda: _die(signal.SIGKILL),
        "segv": lambda: _die(signal.SIGSEGV),
        "exception": lambda: _raise(fault.text),
        "exit": lambda: os._exit(13),
        "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),  # the agent continues the process if the stop is limited
        "gil": lambda: hold_gil(seconds),
        "loop": lambda: endless_loop(seconds),
        "deadlock": deadlock,
        "oom": lambda: exhaust_memory(fault.mib or _OOM_MIB, fault.what == "kill", fault.text),
        "link-drop": drop_links,
        "link-delay": lambda: _engine.delay_links(fault.ms or 0),
    }
    # The agent carries out the other kinds once it is told. A slow rank is a `Slowness`.
    return Plan(kinds.get(fault.kind, lambda: None))


class Slowness:
    """Slows this process down at one place in each step from now on."""

    def __init__(self, fault: Fault, step: int) -> None:
        self._phase = fault.phase
        self._seconds = fault.seconds
        self._factor = fault.factor or 1.0
        self._steps_left = fault.times
        self._step = step - 1
        self._computed = time.thread_time()
        self.at(fault.phase, step)

    def at(self, phase: str, step: int) -> bool:
        """Waits, once per step; returns False once it is over."""
        if self._steps_left == 0 or phase != self._phase or step == self._step:
            return self._steps_left != 0
        self._step = step
        # How long this thread has computed since the last step, excluding waits for other ranks.
        pause = self._seconds or (self._factor - 1) * (time.thread_time() - self._computed)
        time.sleep(pause)
        self._computed = time.thread_time()
        if self._steps_left is not None:
            self._steps_left -= 1
        return self._steps_left != 0


def hold_gil(seconds: float | None) -> None:
    """Keeps all other threads of this process, and signal handlers, from running Python."""
    libc = ctypes.PyDLL(None)  # its calls do not release the GIL
    until = None if seconds is None else time.monotonic() + seconds
    while until is None or (left := until - time.monotonic()) > 0:
        libc.usleep(ctypes.c_uint(900_000 if until is None else min(900_000, int(left * 1e6) + 1)))


def endless_loop(seconds: float | None) -> None:
    """Loops in Python, forever if `seconds` is None."""
    until = float("inf") if seconds is None else time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def deadlock() -> None:
    """Two threads and two locks: each thread holds one and waits for the other."""
    first, second, ready = threading.Lock(), threading.Lock(), threading.Event()

    def injected_deadlock_partner() -> None:
        with second:
            ready.set()
            with first:
                pass

    with first:
        threading.Thread(target=injected_deadlock_partner, daemon=True).start()
        ready.wait()
        with second:
            pass


def exhaust_memory(mib: int, kill: bool, text: str) -> None:
    """Allocates real memory, at most `mib` MiB.

    RLIMIT_AS is set to `mib` above what the process has mapped, so an allocation fails with `MemoryError`. With `kill`
    the process instead ends by SIGKILL once it has allocated that much, as if the kernel's OOM killer had chosen it. If
    the memory of the machine or cgroup runs out first, the kernel kills this process, which asks to be chosen first.
    """
    held: list[bytes] = []
    if kill:
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
        while len(held) < mib:
            held.append(b"\1" * _MIB)
        _die(signal.SIGKILL)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    wanted = mapped + mib * _MIB
    ends = [limit for limit in limits if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min([wanted, *ends]), limits[1]))
    try:
        while True:
            held.append(b"\1" * _MIB)
    except MemoryError:
        taken = len(held)
        held.clear()
        raise MemoryError(f"injected: {text}: no memory after {taken} MiB") from None
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def drop_links() -> None:
    """Cuts the connections on which ranks of other nodes send to this one: those accepted on its listening port."""
    own: list[socket.socket] = []
    ports: set[int] = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.stat(int(name)).st_mode):
                continue
            each = socket.socket(fileno=os.dup(int(name)))
            if each.family in (socket.AF_INET, socket.AF_INET6) and each.type == socket.SOCK_STREAM:
                own.append(each)
                if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    ports.add(each.getsockname()[1])
            else:
                each.close()
    for each in own:
        with contextlib.suppress(OSError), each:
            if each.getsockname()[1] in ports and not each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                each.shutdown(socket.SHUT_RDWR)


def _raise(text: str) -> NoReturn:
    raise InjectedFault(f"injected: {text}")


def _die(number: signal.Signals) -> NoReturn:
    if number == signal.SIGSEGV:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        ctypes.string_at(0)
    os.kill(os.getpid(), number)
    while True:
        time.sleep(1)
