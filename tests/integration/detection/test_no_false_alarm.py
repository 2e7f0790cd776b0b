"""Nothing hangs, on a machine that has more to do than it can: nobody may be suspected.

Half an hour, or as long as SECONDS says. Jobs on one node and on two, one after the other so that there are many first
steps; with sections ten times as long as a step. Beside them `stress-ng`, or a load of our own where it is missing.
"""

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from harness import JOBS, finish, json_lines, start
from network import events
from several_nodes import finish_nodes, start_nodes

SECONDS = float(os.environ.get("SECONDS") or 1800)
UNTIL = 80
SECTIONS = ["--until", UNTIL, "--sections", 15]

BURN = "while True: pass"
TOUCH = """
memory = bytearray(256 << 20)
while True:
    for page in range(0, len(memory), 4096):
        memory[page] ^= 1
"""
WRITE = """
import os, sys
block = os.urandom(1 << 20)
with open(sys.argv[1], "wb") as file:
    while True:
        file.seek(0)
        for _ in range(64):
            file.write(block)
        os.fsync(file.fileno())
"""


@contextlib.contextmanager
def load(folder):
    """More processes that compute, touch memory and write to the disk than there are CPUs; says which."""
    cpus = os.cpu_count() or 1
    if program := shutil.which("stress-ng"):
        commands = [[program, "--cpu", cpus, "--vm", 1, "--vm-bytes", "256M", "--hdd", 1, "--hdd-bytes", "64M",
                     "--temp-path", folder, "--quiet"]]  # fmt: skip
    else:
        commands = [[sys.executable, "-c", BURN]] * cpus
        commands += [[sys.executable, "-c", TOUCH], [sys.executable, "-c", WRITE, folder / "written"]]
    running = []
    try:
        for command in commands:
            running.append(subprocess.Popen([str(part) for part in command], start_new_session=True))
        yield Path(program).name if program else f"{len(commands)} processes of our own"
        assert all(process.poll() is None for process in running), "the load ended too early"
    finally:
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()


def one_node(folder):
    job = [folder, JOBS / "hanging.py", "--out", folder, *SECTIONS]
    return finish(folder, *start(*job, world=3, spares=1), limit_s=1200)


def two_nodes(folder):
    return finish_nodes(start_nodes(folder, JOBS / "hanging.py", "--out", folder, *SECTIONS, world=2), limit_s=1200)


def load_now():
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs"


@pytest.mark.long
def test_nobody_is_suspected_on_a_loaded_machine():
    began = time.monotonic()
    jobs = steps = 0
    longest = 0.0
    with tempfile.TemporaryDirectory() as name, load(Path(name)) as what:
        while time.monotonic() - began < SECONDS:
            folder = Path(name) / f"job{jobs}"
            job = (one_node, two_nodes)[jobs % 2](folder)
            assert job.exit_code == 0, job.explain()
            assert not events(folder, "hang") and not job.events("fault_detected"), job.explain()
            times = [line["committed_mono"] for line in json_lines(folder / "journal" / "metrics.jsonl")]
            longest = max([longest, *(b - a for a, b in itertools.pairwise(times))])
            jobs, steps = jobs + 1, steps + UNTIL
            shutil.rmtree(folder)
            # For whoever reads the log: nothing is asserted about time.
            print(
                f"{time.monotonic() - began:.0f} s: {jobs} jobs, {steps} steps, no alarm; "
                f"longest step {longest:.2f} s; beside {what}, {load_now()}",
                flush=True,
            )
