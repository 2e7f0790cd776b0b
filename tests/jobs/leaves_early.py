"""Leaves its loop over steps after step 3: on rank 1 alone, or, with --together, on all ranks."""

import argparse
import sys
import time
from pathlib import Path

import torch

import keepstep

parser = argparse.ArgumentParser()
parser.add_argument("mode", choices=["break", "return", "exit", "back"])
parser.add_argument("--together", action="store_true")
parser.add_argument("--alone", action="store_true", help="no wrapper: ranks meet in the vote only")
parser.add_argument("--journal", type=Path)
args = parser.parse_args()


def build():
    model = torch.nn.Linear(4, 1)
    return keepstep.State(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01))


@keepstep.recoverable
def train(run):
    state = run.setup(build)
    model, optimizer = state.model, state.optimizer
    replica = model if args.alone else run.ddp(model)

    def steps(until):
        for step in run.steps([torch.ones(4)] * 8, global_batch=4, micro_batch=2, last_step=until):
            for x in step:
                step.backward(replica(x).sum())
            step.commit(optimizer.step)
            yield step

    for step in steps(6):
        if step.number == 3 and (run.rank == 1 or args.together):
            if args.mode == "return":
                return
            if args.mode == "exit":
                sys.exit(0)
            break
    if args.mode == "back" and run.rank == 1:
        while "left_early" not in args.journal.read_text():
            time.sleep(0.05)  # an evaluation of its own, which takes until it is missed
    if args.mode == "back":
        for _ in steps(6):
            pass


train()
print("the script went on")
