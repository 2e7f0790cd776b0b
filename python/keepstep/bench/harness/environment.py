"""Finds what the benchmarks run, and describes the machine."""

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
    """The path of `keepstep`: $KEEPSTEP_COMMAND, next to the interpreter, in PATH, or in the checkout's build/."""
    try:
        return _command.keepstep_command()
    except KeepstepError as error:
        raise BenchError(str(error)) from None


def bench_program(name: str) -> str:
    """A C++ program that only benchmarks start, next to the keepstep command in the build folder."""
    command = Path(keepstep_command()).resolve()
    found = shutil.which(str(command.parent / name))
    if found is None:
        raise BenchError(f"no {name} beside {command}; run `ninja -C build {name}`")
    return found


def gpt_example() -> Path:
    """The folder of the example whose model the benchmarks train: $KEEPSTEP_EXAMPLES/gpt, or that of the checkout."""
    root = os.environ.get("KEEPSTEP_EXAMPLES")
    folder = (Path(root) if root else _repository() / "examples") / "gpt"
    if not (folder / "model.py").is_file():
        raise BenchError(f"{folder} holds no model.py; set KEEPSTEP_EXAMPLES to the examples of a checkout of keepstep")
    return folder


def free_port() -> int:
    """A port of loopback on which no process listens right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def job_environment() -> dict[str, str]:
    """The same for every tool: one computing thread per rank, and this interpreter with this package."""
    package = str(Path(__file__).resolve().parents[3])
    path = os.environ.get("PYTHONPATH")
    return os.environ | {
        "OMP_NUM_THREADS": "1",
        "KEEPSTEP_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([package, str(gpt_example()), *([path] if path else [])]),
        "PYTHONUNBUFFERED": "1",
    }


def model_parameters() -> int:
    """Number of parameters of the compared model, counted in a separate process: this one stays free of torch."""
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
