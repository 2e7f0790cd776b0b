"""tests/jobs/small.py on the GPU."""

from harness import run_small

CUDA = ["--device", "cuda"]
UNTIL = 10


def run_cuda(folder, *, until=UNTIL, extra=(), **how):
    return run_small(folder, until=until, extra=[*CUDA, *extra], **how)
