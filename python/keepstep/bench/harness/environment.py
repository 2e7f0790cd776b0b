"""Where the benchmarks find what they run, and on what machine they run it."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from keepstep import _command
from keepstep._errors import KeepstepError

JOBS = Path(__file__).parents[1] / "jobs"


class BenchError(Exception):
    """A measurement could not be made; the text says why and what to do."""


def _repository() -> Path:
    return Path(__file__).resolve().parents[4]


def keepstep_command() -> str:
    """The command `keepstep`: $KEEPSTEP_COMMAND, beside the interpreter, in PATH, or in the checkout's build folder."""
    try:
        return _command.keepstep_command()
    except KeepstepError as error:
        raise BenchError(str(error)) from None


def bench_program(name: str) -> str:
    """A program of C++ that only benchmarks start: beside the command keepstep, which is its build folder."""
    command = Path(keepstep_command()).resolve()
    found = shutil.which(str(command.parent / name))
    if found is None:
        raise BenchError(f"no {name} beside {command}; run `ninja -C build {name}`")
    return found


def gpt_example() -> Path:
    """The folder of the example whose model the benchmarks train: $KEEPSTEP_EXAMPLES/gpt, or the checkout's."""
    root = os.environ.get("KEEPSTEP_EXAMPLES")
    folder = (Path(root) if root else _repository() / "examples") / "gpt"
    if not (folder / "model.py").is_file():
        raise BenchError(f"{folder} holds no model.py; set KEEPSTEP_EXAMPLES to the examples of a checkout of keepstep")
    return folder


def free_port() -> int:
    """Of loopback; nobody listens there just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def job_environment() -> dict[str, str]:
    """One computing thread per rank, and this interpreter with this package, for every tool alike."""
    package = str(Path(__file__).resolve().parents[3])
    path = os.environ.get("PYTHONPATH")
    return os.environ | {
        "OMP_NUM_THREADS": "1",
        "KEEPSTEP_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([package, str(gpt_example()), *([path] if path else [])]),
        "PYTHONUNBUFFERED": "1",
    }


def model_parameters() -> int:
    """Parameters of the compared model, counted by a process of its own: this one stays free of torch."""
    count = "import gpt_setup, model; print(model.parameter_count(gpt_setup.build(0).model))"
    environment = job_environment()
    environment["PYTHONPATH"] += os.pathsep + str(JOBS)
    done = subprocess.run([sys.executable, "-c", count], env=environment, check=True, capture_output=True, text=True)
    return int(done.stdout)


def machine() -> dict[str, object]:
    """What a measured figure depends on besides the code."""
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "cpu": _cpu_model(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": version("torch"),
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
