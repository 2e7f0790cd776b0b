"""The life of one worker process: attach to the agent, run the user's script, end.

Entered from the zygote after a fork, or by ``python -m keepstep.worker SOCKET_FD MEMORY_FD`` if the agent starts
workers by exec; in that case ``KEEPSTEP_WORKER_SPEC`` describes the job.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import json
import multiprocessing
import os
import runpy
import signal
import sys
import threading
import traceback
import types
from typing import Any

from keepstep import _engine
from keepstep._errors import KeepstepError
from keepstep._session import Session, set_session, watch_environment

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
MAX_TEMP_BYTES = 80
PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
MAX_TEXT_BYTES = 60_000  # of a traceback in a message


def shortened(text: str) -> str:
    """The end of `text`, as much of it as a message can carry."""
    return text.encode(errors="replace")[-MAX_TEXT_BYTES:].decode(errors="ignore")


def user_traceback(error: BaseException) -> str:
    """The traceback of `error`, and of what caused it, without the frames of this package."""
    text = traceback.TracebackException.from_exception(error)
    _leave_out_ours(text, error)
    return "".join(text.format())


def _leave_out_ours(text: traceback.TracebackException | None, error: BaseException | None) -> None:
    """An error of our own keeps them: one that was raised in this package and is no `KeepstepError`."""
    if text is None or error is None:
        return
    users = [frame for frame in text.stack if not frame.filename.startswith(PACKAGE)]
    if users and (isinstance(error, KeepstepError) or users[-1] is text.stack[-1]):
        text.stack[:] = users
    _leave_out_ours(text.__cause__, error.__cause__)
    _leave_out_ours(text.__context__, error.__context__)


def fingerprint() -> dict[str, str]:
    """What determines the bits that this process computes: all workers of a job must agree on it."""
    import torch

    flags = ""
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as cpuinfo:
        for line in cpuinfo:
            if line.startswith(("flags", "Features")):
                flags = line
                break
    return {
        "torch": torch.__version__,
        "threads": str(torch.get_num_threads()),
        "cpu": hashlib.sha256(flags.encode()).hexdigest()[:16],
        "capability": torch.backends.cpu.get_cpu_capability(),
        "deterministic": str(torch.are_deterministic_algorithms_enabled()),
    }


def _run_script(spec: dict[str, Any]) -> None:
    script = spec["script"]
    sys.argv = [script, *spec["args"]]
    if spec["module"]:
        sys.path.insert(0, os.getcwd())
        runpy.run_module(script, run_name="__main__", alter_sys=True)
        return
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    module = types.ModuleType("__main__")
    module.__file__ = script
    module.__builtins__ = __builtins__  # type: ignore[attr-defined]
    sys.modules["__main__"] = module
    with open(script, "rb") as source:
        code = compile(source.read(), script, "exec")
    exec(code, module.__dict__)


def _exit_code(exit_: SystemExit) -> int:
    if exit_.code is None:
        return 0
    if isinstance(exit_.code, int):
        return exit_.code
    print(exit_.code, file=sys.stderr)
    return 1


def use_temp_folder(name: str) -> None:
    """Puts multiprocessing's temporary files into a folder that the agent removes if this process is killed."""
    folder = os.environ.get("KEEPSTEP_TEMP", "")
    path = os.path.join(folder, name)
    # A socket's path has room for 107 bytes, and multiprocessing's names take some of it.
    if folder and len(os.fsencode(path)) <= MAX_TEMP_BYTES:
        with contextlib.suppress(OSError):
            os.makedirs(path, mode=0o700, exist_ok=True)
            process: Any = multiprocessing.current_process()
            process._config["tempdir"] = path


def run_worker(spec: dict[str, Any], socket_fd: int, memory_fd: int) -> int:
    """Runs the script in this process and returns its exit code."""
    for name in THREAD_VARIABLES:
        os.environ.pop(name, None)  # the zygote's values are not the user's, which come with the environment
    os.environ.update(spec["environment"])
    use_temp_folder(str(spec["worker"]))
    import torch

    # Set explicitly, so a forked worker and one started by exec compute the same bits.
    threads = spec["environment"].get("OMP_NUM_THREADS", "")
    torch.set_num_threads(int(threads) if threads.isdigit() else len(os.sched_getaffinity(0)))
    session = Session(_engine.Engine.attach(socket_fd, memory_fd, fingerprint()))
    set_session(session)
    session.script_path = os.getcwd() if spec["module"] else os.path.dirname(os.path.abspath(spec["script"]))
    watch_environment(session.welcome.rank_variables)
    code = 0
    try:
        from keepstep.torch.recovery import (
            health,  # the package registers the backend, and refuses a torch that is too old
        )

        session.before_parking = functools.partial(health.check, session)
        if "KEEPSTEP_WITNESS" in os.environ:
            from keepstep.torch.integrity import witness

            session.witness = witness.install(session)

        _run_script(spec)
        if not session.recoverable:
            # A script that never asked for a rank is still one of the ranks; spares wait here until the end.
            session.need_rank("the end of the script")
    except SystemExit as exit_:
        code = _exit_code(exit_)
    except _engine.JobEnded:
        code = 0 if session.recoverable else 1
    except BaseException as error:
        text = user_traceback(error)
        sys.stderr.write(text)
        session.engine.tell_crashed(shortened(text))
        code = 1
    return code


def end(code: int) -> None:
    """Ends the process as Python would, without returning into whatever the zygote was doing."""
    try:
        # Like the interpreter: tells idle thread pools (Inductor's, concurrent.futures) to end, then joins them.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        # The engine says goodbye, so this end is not taken for a death.
        import keepstep._session as session_module

        current = session_module.session_or_none()
        if current is not None:
            current.engine.close()
        os._exit(code)


def reset_signals() -> None:
    """Restores default dispositions: what the zygote or the agent set must not affect the script."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def main() -> None:
    spec = json.loads(os.environ.pop("KEEPSTEP_WORKER_SPEC"))
    reset_signals()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    end(run_worker(spec, int(sys.argv[1]), int(sys.argv[2])))


if __name__ == "__main__":
    # Keep one copy of this module, even when started with -m: everyone must find the same session.
    from keepstep.worker import main as real_main

    real_main()
