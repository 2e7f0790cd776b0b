"""small.py, with connections to other nodes that break: rank CUT_RANK shuts its own down as it enters step CUT_AT, for
the first CUT_TIMES times. The kernel tells both ends, as if a cable or a firewall had done it.
"""

import os
import runpy
import socket
import stat
import sys

from keepstep.torch.runtime.run import Run

RANK, AT, TIMES = (int(os.environ[f"CUT_{name}"]) for name in ("RANK", "AT", "TIMES"))
times = 0
steps_of = Run.steps


def connections():
    """Connected TCP sockets of this process: those to ranks on other nodes."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if stat.S_ISSOCK(os.stat(f"/proc/self/fd/{name}").st_mode):
                copy = socket.socket(fileno=os.dup(int(name)))
                if copy.family == socket.AF_INET and copy.getpeername():
                    yield copy
        except OSError:
            continue  # gone, or it listens


def cut():
    return [connection.shutdown(socket.SHUT_RDWR) for connection in connections()]


def steps_with_a_cut(run, *args, **kwargs):
    global times
    for step in steps_of(run, *args, **kwargs):
        if run.rank == RANK and step.number == AT and times < TIMES and cut():
            times += 1
            print(f"cut {times} at step {AT}", flush=True)
        yield step


Run.steps = steps_with_a_cut
sys.argv[0] = os.path.join(os.path.dirname(os.path.abspath(__file__)), "small.py")
runpy.run_path(sys.argv[0], run_name="__main__")
