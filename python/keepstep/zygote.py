"""The zygote: a process with torch and the user's modules imported that forks a worker in milliseconds.

The agent starts ``python -m keepstep.zygote SOCKET_FD`` with one BLAS/OpenMP thread. A fork copies only the forking
thread, so the zygote must have exactly one thread, no OpenMP team and no CUDA context. What workers import beyond torch
is learned in a fork, which becomes the zygote if it stayed safe to fork (_preload.py).

Messages are JSON packets; see src/agent/workers/starter.cc. Ends when the agent is gone.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import warnings
from typing import Any

from keepstep._preload import Learning, imports_kept, unsafe_to_fork

MAX_PACKET = 160 * 1024
# What the first steps of a training job import lazily: DistributedDataParallel alone takes a second of imports.
PRELOAD = [
    *("torch", "torch._dynamo", "torch.distributed", "torch.nn.parallel", "torch.optim", "torch.utils.data"),
    *("keepstep.torch", "keepstep.torch.recovery.health", "keepstep.torch.runtime.loop", "keepstep.worker"),
]

NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"


def import_quietly(name: str) -> str:
    """Imports `name`. Returns what went wrong, or why the process became unsafe to fork; empty if all is well."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(name)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return unsafe_to_fork()


class Zygote:
    def __init__(self, connection: socket.socket, users_check: str | None = None) -> None:
        self._connection = connection
        self._users_check = users_check  # the value of NVML_CHECK for workers
        self._learning: Learning | None = None
        self._unfit = False  # the agent was told, and starts all workers by exec, even those it had already requested
        self.temp = ""  # the agent's folder for workers' temporary files

    def note(self, event: str, why: str) -> None:
        self._send({"op": "note", "event": event, "why": why})

    def _send(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        self._unfit |= message["op"] == "unfit"
        socket.send_fds(self._connection, [json.dumps(message).encode()], fds or [])

    def warm_up(self) -> None:
        """Imports what every worker needs. On failure, workers start by exec, which shows the actual error."""
        with imports_kept():
            for name in PRELOAD:
                why = import_quietly(name)
                if why:
                    self._send({"op": "unfit", "why": f"import {name}: {why}"})
                    return
        self.note("zygote_ready", f"{len(sys.modules)} modules imported, one thread")

    def _succeeded(self, pid: int) -> None:
        self._send({"op": "successor", "pid": pid})

    def spawn(self, request: dict[str, Any], fds: list[int]) -> None:
        """Forks twice: the worker becomes a child of the agent, which is the subreaper.

        The worker waits until the agent has been told of it. If the intermediate process dies first, the worker ends
        without having touched its socket, and the agent starts another process with that.
        """
        middle = os.fork()
        if middle == 0:
            told, tell = os.pipe()
            worker = os.fork()
            if worker == 0:
                os.close(tell)
                self._connection.close()
                if not os.read(told, 1):
                    os.kill(os.getpid(), signal.SIGKILL)  # an exit code would be mistaken for the script's
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
        if self._learning is not None:
            self._learning.forget()
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
            learning = self._learning
            stage, timeout_s = ([], None) if learning is None else learning.waits_for()
            readable, _, _ = select.select([self._connection, *stage], [], [], timeout_s)
            if self._connection in readable:  # always first: a rank is waiting for this worker
                if not self._answer():
                    return
            elif learning is not None and not learning.go_on(bool(readable)):
                self._learning = None

    def _answer(self) -> bool:
        """Handles one request; False if the agent is gone."""
        packet, fds, _, _ = socket.recv_fds(self._connection, MAX_PACKET, 4)
        if not packet:
            return False
        request = json.loads(packet)
        if request["op"] == "spawn" and self._unfit:
            for fd in fds:
                os.close(fd)
        elif request["op"] == "spawn":
            self.temp = request["environment"].get("KEEPSTEP_TEMP", "")
            if self._learning is not None:
                self._learning.pause()
            self.spawn(request, list(fds))
        elif request["op"] == "preload" and self._learning is None and not self._unfit:
            self._learning = Learning(
                request["modules"], request["path"], request["environment"], self.note, self._succeeded
            )
        return True


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Slurm signals every process of a job; the agent knows what to do. Workers get the default back.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if "SLURM_JOB_ID" in os.environ:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Imported modules often ask whether there is a GPU. With this setting torch answers without starting CUDA.
    zygote = Zygote(socket.socket(fileno=int(sys.argv[1])), users_check=os.environ.get(NVML_CHECK))
    os.environ[NVML_CHECK] = "1"
    zygote.warm_up()
    zygote.serve()
    if zygote.temp:
        shutil.rmtree(zygote.temp, ignore_errors=True)  # the agent is gone, and may not have had time to
    # Tearing down all modules takes half a second, and the exit handlers of users' modules are for workers to run.
    os._exit(0)


if __name__ == "__main__":
    main()
