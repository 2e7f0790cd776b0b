"""Where the time of a process's first step goes, a replacement's too. No test: docs/reference/gpu.md shows its figures.

keepstep run --nproc-per-node 2 --spares 1 --inject kill:rank=1,step=4,phase=backward tests/gpu/jobs/first_step.py

Each process prints how many ms each thing took, with a synchronize after it. Several ranks on one GPU need
NCCL_MULTI_RANK_GPU_ENABLE=1.
"""

import argparse
import itertools
import os
import sys
import time
from pathlib import Path

import torch

import keepstep

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "jobs"))
from common import Noise

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--until", type=int, default=10)
parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
args = parser.parse_args()


def build():
    sizes = [16, args.width, args.width, args.width]
    layers = [layer for a, b in itertools.pairwise(sizes) for layer in (torch.nn.Linear(a, b), torch.nn.Tanh())]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(args.width, 4))
    return keepstep.State(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2))


class Stopwatch:
    def __init__(self):
        self.laps = []
        self._last = time.monotonic()

    def lap(self, name):
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        now = time.monotonic()
        self.laps.append(f"{name} {1000 * (now - self._last):.0f}")
        self._last = now


@keepstep.recoverable
def train(run):
    watch = Stopwatch()
    state = run.setup(build)
    watch.lap("setup")
    device = torch.device(args.device)
    if args.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
        torch.zeros(1, device=device)
        watch.lap("context")
    state.model.to(device)
    replica = run.ddp(state.model)
    watch.lap("ddp")
    first = True
    for step in run.steps(Noise(), global_batch=16, micro_batch=8, last_step=args.until):
        for x, y in step:
            loss = torch.nn.functional.mse_loss(replica(x.to(device)), y.to(device))
            watch.lap("forward")
            step.backward(loss)
            watch.lap("backward")
        step.commit(state.optimizer.step)
        watch.lap("commit")
        if first:
            print(f"generation {run.generation} rank {run.rank} {run.entry}:", *watch.laps, flush=True)
            first = False


train()
