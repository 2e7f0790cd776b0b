"""The zygote: a process with torch and the user's modules imported that forks a worker in milliseconds.

``python -m keepstep.zygote SOCKET_FD``, started by the agent with one BLAS/OpenMP thread. A fork copies
only the forking thread, so the zygote must have exactly one, no OpenMP team and no CUDA context. What an import does is
tried in a forked probe first; a module that starts a thread or touches CUDA is named and left out.

Messages are JSON packets; see src/agent/starter.cc. Ends when the agent is gone.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import sys
import warnings
from collections.abc import Iterator
from typing import Any

MAX_PACKET = 160 * 1024
# What the first steps of a training job import lazily: DistributedDataParallel alone takes a second of imports.
PRELOAD = [
    *("torch", "torch._dynamo", "torch.distributed", "torch.nn.parallel", "torch.optim", "torch.utils.data"),
    *("keepstep.torch", "keepstep.torch.health", "keepstep.torch.loop", "keepstep.worker"),
]


UNSAFE = ("threads run", "CUDA is initialized")  # how unsafe_to_fork() ends
LOST = "the probe that imported it"  # how the reason begins when the probe did not survive an import
IMPORT_LIMIT_S = 60
NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"


def thread_count() -> int:
    return len(os.listdir("/proc/self/task"))


def cuda_is_open(folder: str = "/proc/self/fd") -> bool:
    """Whether CUDA's driver was started in this process, by torch or by any other library: it holds its device file.

    Counting devices is enough for that (cuInit), long before there is a context, and spoils CUDA for all children.
    """
    for name in os.listdir(folder):
        try:
            if os.readlink(os.path.join(folder, name)).startswith("/dev/nvidia-uvm"):
                return True
        except OSError:
            pass  # closed meanwhile: the descriptor that lists the folder is among them
    return False


def unsafe_to_fork() -> str:
    """Why this process must not be forked any more; empty if it may."""
    if thread_count() != 1:
        return f"{thread_count()} threads run"
    torch = sys.modules.get("torch")
    if cuda_is_open() or (torch is not None and torch.cuda.is_initialized()):
        return "CUDA is initialized"
    return ""


def import_quietly(name: str) -> str:
    """Imports `name`; returns what went wrong, or how the process became unsafe to fork; empty if all is well."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(name)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return unsafe_to_fork()


@contextlib.contextmanager
def imports_kept() -> Iterator[None]:
    """What is imported here stays: the collector of a forked worker need not look at it, nor copy its pages.

    Nor does it look while the imports run: they make half a million objects and hardly any garbage, and to go through
    those again and again takes a third of the whole time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def inconclusive(bad: dict[str, str]) -> bool:
    """Whether the probe ended early: then nothing is known about the modules after the last of `bad`."""
    return any(why.endswith(UNSAFE) or why.startswith(LOST) for why in bad.values())


def probe(modules: list[str], limit_s: int = IMPORT_LIMIT_S) -> dict[str, str]:
    """Imports `modules` one by one in a forked child; returns those that must not be imported here, with the reason.

    An import that takes longer than `limit_s` is one of them: it may wait for what never comes, and nothing can be
    forked meanwhile.
    """
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        with os.fdopen(write_end, "w") as out:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            for name in modules:
                signal.alarm(limit_s)  # ends the probe, whoever is there to see it
                why = import_quietly(name)
                out.write(json.dumps([name, why]) + "\n")
                out.flush()
                if unsafe_to_fork():
                    break  # what follows cannot be told apart any more: the caller asks again without this one
        os._exit(0)
    os.close(write_end)
    bad: dict[str, str] = {}
    seen = 0
    with os.fdopen(read_end) as lines:
        for line in lines:
            name, why = json.loads(line)
            seen += 1
            if why:
                bad[name] = why
    _, status = os.waitpid(child, 0)
    if seen < len(modules) and not inconclusive(bad):
        late = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM
        bad[modules[seen]] = f"{LOST} {f'took longer than {limit_s} s' if late else 'died'}"
    return bad


class Zygote:
    def __init__(self, connection: socket.socket, users_check: str | None = None) -> None:
        self._connection = connection
        self._users_check = users_check  # NVML_CHECK as workers shall find it
        self._unfit = False  # the agent was told: it starts all by exec, also those that it asked for before it heard

    def note(self, event: str, why: str) -> None:
        self._send({"op": "note", "event": event, "why": why})

    def _send(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        self._unfit |= message["op"] == "unfit"
        socket.send_fds(self._connection, [json.dumps(message).encode()], fds or [])

    def warm_up(self) -> None:
        """Imports what every worker needs. On a failure workers start by exec, which shows the error itself."""
        with imports_kept():
            for name in PRELOAD:
                why = import_quietly(name)
                if why:
                    self._send({"op": "unfit", "why": f"import {name}: {why}"})
                    return
        self.note("zygote_ready", f"{len(sys.modules)} modules imported, one thread")

    def learn(self, modules: list[str], path: str, environment: dict[str, str]) -> None:
        """Imports what the first worker had imported, except what would make this process unsafe to fork.

        As in a worker: with the script's folder on the path, and the variables that hold for the whole job.
        """
        sys.path.insert(0, path)
        before = dict(os.environ)
        os.environ.update(environment)
        wanted = [name for name in modules if name not in sys.modules]
        left_out: dict[str, str] = {}
        while wanted:
            bad = probe(wanted)
            left_out.update(bad)
            wanted = [name for name in wanted if name not in bad]
            if not inconclusive(bad):
                break
        with imports_kept():
            for name in wanted:
                import_quietly(name)
        sys.path.pop(0)
        os.environ.clear()
        os.environ.update(before)
        for name, why in left_out.items():
            self.note("preload_left_out", f"{name}: {why}")
        why = unsafe_to_fork()
        if why:
            self._send({"op": "unfit", "why": f"after the learned preload: {why}"})
        elif wanted:
            self.note("preloaded", f"{len(wanted)} modules that the first worker had imported")

    def spawn(self, request: dict[str, Any], fds: list[int]) -> None:
        """Forks twice: the worker becomes a child of the agent, which is the subreaper.

        It waits until the agent was told of it. Where the process between dies before, it ends without having touched
        its socket: the agent starts another process with that.
        """
        middle = os.fork()
        if middle == 0:
            told, tell = os.pipe()
            worker = os.fork()
            if worker == 0:
                os.close(tell)
                self._connection.close()
                if not os.read(told, 1):
                    os._exit(1)
                os.close(told)
                self._become_worker(request, fds)
            self._send({"op": "spawned", "worker": request["worker"], "pid": worker}, [os.pidfd_open(worker)])
            os.write(tell, b"1")
            os._exit(0)
        for fd in fds:
            os.close(fd)
        _, status = os.waitpid(middle, 0)
        if status != 0:
            why = f"the fork of worker {request['worker']} failed (wait status {status}); it starts by exec"
            self._send({"op": "failed", "worker": request["worker"], "why": why})

    def _become_worker(self, request: dict[str, Any], fds: list[int]) -> None:
        from keepstep.worker import end, reset_signals, run_worker

        reset_signals()
        os.environ.pop(NVML_CHECK, None)
        if self._users_check is not None:
            os.environ[NVML_CHECK] = self._users_check
        os.setpgid(0, 0)
        os.dup2(fds[2], 1)
        os.dup2(fds[3], 2)
        os.close(fds[2])
        os.close(fds[3])
        sys.stdin = open(os.devnull)
        sys.stdout = os.fdopen(1, "w", buffering=1, encoding="utf-8", errors="backslashreplace")
        sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace")
        code = 1
        try:
            code = run_worker(request, fds[0], fds[1])
        except BaseException as error:
            sys.stderr.write(f"keepstep: a worker could not start: {error}\n")
        finally:
            end(code)

    def serve(self) -> None:
        while True:
            packet, fds, _, _ = socket.recv_fds(self._connection, MAX_PACKET, 4)
            if not packet:
                return
            request = json.loads(packet)
            if request["op"] == "spawn" and not self._unfit:
                self.spawn(request, list(fds))
            elif request["op"] == "spawn":
                for fd in fds:
                    os.close(fd)
            elif request["op"] == "preload":
                self.learn(request["modules"], request["path"], request["environment"])


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Slurm signals every process of a job; the agent knows what to do. Workers get the default back.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if "SLURM_JOB_ID" in os.environ:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Imported modules like to ask whether there is a GPU. Asked this way torch looks it up without starting CUDA.
    zygote = Zygote(socket.socket(fileno=int(sys.argv[1])), users_check=os.environ.get(NVML_CHECK))
    os.environ[NVML_CHECK] = "1"
    zygote.warm_up()
    zygote.serve()
    # To take all modules apart takes half a second, and what users' modules do at exit is for workers to do.
    os._exit(0)


if __name__ == "__main__":
    main()
