"""small.py in which one rank dies at its first write into its capsules after a step was decided, else right after the
commit of that step.

    dies_in_capsule.py RANK STEP [--communicates] ARGUMENTS OF small.py...

The capsules' memory is made read-only for the rest of that commit: a write there is the death of the process, in the
middle of the copy. `--communicates`: step.commit is told that the update communicates.
"""

import ctypes
import os
import re
import runpy
import signal
import sys

from keepstep import Step

HEADER_BYTES = 4096  # of a worker's memory: src/rank/link/page.h
CAPSULES_BYTES = 2 << 20
PROT_READ = 1

rank, step = int(sys.argv[1]), int(sys.argv[2])
communicates = sys.argv[3] == "--communicates"
sys.argv = [os.path.join(os.path.dirname(__file__), "small.py"), *sys.argv[3 + communicates :]]
libc = ctypes.CDLL(None, use_errno=True)
commit = Step.commit


def protect_capsules(worker):
    """Makes the capsules of this process's own memory read-only."""
    with open("/proc/self/maps") as maps:
        starts = [int(line.split("-")[0], 16) for line in maps if re.search(rf"memfd:keepstep-worker-{worker}\b", line)]
    for start in starts:
        assert libc.mprotect(ctypes.c_void_p(start + HEADER_BYTES), CAPSULES_BYTES, PROT_READ) == 0, "mprotect"


def commit_and_die(current, *update, **options):
    run = current.run
    dies = run.rank == rank and current.number == step and run._session.claim_once("dies_in_capsule")
    last = [lambda: protect_capsules(run._session.engine.worker)] if dies else []
    commit(current, *update, *last, communicates=communicates, **options)
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)


Step.commit = commit_and_die
runpy.run_path(sys.argv[0], run_name="__main__")
