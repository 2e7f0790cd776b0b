"""Nodes for tests of the memory server: each is a runtime folder of its own, so a server of its own."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import KEEPSTEP

JOB = Path(__file__).parent / "memory_job.py"


class Node:
    """A machine, as far as memory servers can tell."""

    def __init__(self, **variables):
        self.folder = tempfile.mkdtemp(prefix="keepstep-node-")  # 0700, and short enough for a socket
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("KEEPSTEP_MEMORY")}
        self.environment |= {"XDG_RUNTIME_DIR": self.folder, "KEEPSTEP_COMMAND": str(KEEPSTEP), "OMP_NUM_THREADS": "1"}
        self.environment |= variables
        self.processes = []

    def memory(self, *words, check=True):
        ran = subprocess.run(
            [KEEPSTEP, "memory", *words], env=self.environment, capture_output=True, text=True, timeout=60
        )
        assert not check or ran.returncode == 0, ran.stderr
        return ran

    def status(self):
        return json.loads(self.memory("status", "--json").stdout)

    def pid(self):
        return self.status()["pid"]

    def ckpt(self, *words):
        return subprocess.run(
            [KEEPSTEP, "ckpt", *words], env=self.environment, capture_output=True, text=True, timeout=120
        )

    def serve(self, *options):
        """A server in the foreground; returns when it serves."""
        process = self.start([KEEPSTEP, "memory", "serve", *options])
        line = process.stdout.readline()
        assert "serves" in line, (line, process.stdout.read())
        return process

    def start(self, command):
        process = subprocess.Popen(
            command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        self.processes.append(process)
        return process

    def torchrun(self, world, *arguments):
        return self.start([
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)),
            *(str(JOB), *map(str, arguments)),
        ])  # fmt: skip

    def kill_server(self):
        pid = self.pid()
        ends = os.pidfd_open(pid)
        os.kill(pid, signal.SIGKILL)
        select.select([ends], [], [], 30)
        os.close(ends)

    def close(self):
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()
        self.memory("stop", "--force", check=False)
        for name in sorted(Path(self.folder).rglob("*"), reverse=True):
            name.rmdir() if name.is_dir() else name.unlink()
        Path(self.folder).rmdir()


def lines_until(process, text):
    """What a process prints, up to the line that begins with `text`."""
    found = []
    for line in process.stdout:
        found.append(line.rstrip())
        if line.startswith(text):
            return found
    raise AssertionError(f"no line '{text}': " + "\n".join(found))


def finished(process):
    """The output of a process that ends well."""
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 0, output
    return output
