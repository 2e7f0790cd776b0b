"""A zygote without an agent, and a package with modules of all kinds for it to learn."""

import json
import os
import socket
import subprocess

from harness import PYTHON, ROOT

MODULES = 1000
GATE = "gate"  # a file: the slow module waits for it
IN_ZYGOTE = "import sys\nif sys.argv[0].endswith('zygote.py'):\n    "
UNFIT = {
    "m100": "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "m300": "import os; os._exit(3)",
    "m400": "raise ValueError('no such device')",
    "m500": "import os; os.kill(os.getpid(), 9)",
}


def write_package(folder):
    """`strange`: 1,000 modules, in chains of ten that import each other; its import order, as a worker would tell it.

    One starts a thread, one waits for FOLDER/gate, one exits, one raises, one kills its process; all of them only in a
    zygote, as far as a worker could not live with them.
    """
    package = folder / "strange"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "every.py").write_text("".join(f"import strange.m{i:03}\n" for i in range(0, MODULES, 10)))
    for i in range(MODULES):
        name = f"m{i:03}"
        body = f"import strange.m{i + 1:03}\n" if i % 10 != 9 else ""
        if name in UNFIT:
            body += UNFIT[name] + "\n" if name == "m100" else IN_ZYGOTE + UNFIT[name] + "\n"
        if name == "m200":
            body += (
                f"{IN_ZYGOTE}import os, time\n    while not os.path.exists({str(folder / GATE)!r}): time.sleep(0.02)\n"
            )
        (package / f"{name}.py").write_text(f"{body}VALUE = {i}\n")
    return ["strange", "strange.every", *(f"strange.m{i:03}" for i in range(MODULES))]


class Zygote:
    """`python -m keepstep.zygote`, and what an agent would say to it."""

    def __init__(self):
        self.connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.process = subprocess.Popen(
            [PYTHON, "-m", "keepstep.zygote", str(theirs.fileno())], pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        theirs.close()
        self.connection.settimeout(120)
        assert self.hear()["event"] == "zygote_ready"

    def say(self, **message):
        self.connection.send(json.dumps(message).encode())

    def hear(self):
        packet, fds, _, _ = socket.recv_fds(self.connection, 1 << 18, 4)
        for fd in fds:
            os.close(fd)
        assert packet, "the zygote is gone"
        return json.loads(packet)

    def ask_for_worker(self, number):
        null = os.open(os.devnull, os.O_RDWR)
        request = {"op": "spawn", "worker": number, "script": "none.py", "module": False, "args": [], "environment": {}}
        socket.send_fds(self.connection, [json.dumps(request).encode()], [null] * 4)
        os.close(null)

    def close(self):
        self.connection.close()
        self.process.wait(60)
