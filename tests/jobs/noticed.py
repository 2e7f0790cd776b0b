"""A job that saves when it is told that it has to stop, and goes on from there when it is started again.

Each process appends JSON lines to OUT/PID.jsonl. What is saved is OUT/saved.pt: steps done, and the model.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch

import keepstep

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--until", type=int, default=1000)
parser.add_argument("--die-once", type=int, default=-1, help="this rank is killed the first time it saves")
args = parser.parse_args()

log = open(args.out / f"{os.getpid()}.jsonl", "a", buffering=1)
saved_at = args.out / "saved.pt"


def note(**values):
    log.write(json.dumps(values) + "\n")


def build():
    model = torch.nn.Linear(8, 1)
    done = 0
    if saved_at.exists():
        done, state = torch.load(saved_at)
        model.load_state_dict(state)
    return keepstep.State(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01)).with_unprotected(
        done=done
    )


@keepstep.recoverable
def train(run):
    state = run.setup(build)
    model, optimizer, done = state.model, state.optimizer, state.done

    def save():
        note(saving=done + run.version, rank=run.rank, because=run.notice)
        if run.rank == args.die_once and run.generation == 1:
            os.kill(os.getpid(), 9)
        torch.distributed.barrier()  # peers are there
        if run.rank == 0:
            torch.save((done + run.version, model.state_dict()), f"{saved_at}.half")
            os.replace(f"{saved_at}.half", saved_at)

    run.on("notice", save)
    replica = run.ddp(model)
    data = torch.utils.data.TensorDataset(torch.randn(64, 8))
    note(start=done + run.version, rank=run.rank, restarts=int(os.environ.get("SLURM_RESTART_COUNT", "0")))
    for step in run.steps(data, global_batch=16, micro_batch=2, last_step=args.until - done):
        for (x,) in step:
            step.backward(replica(x).square().mean())
        step.commit(optimizer.step)
        note(step=done + step.number, rank=run.rank, notice=run.notice)
        time.sleep(0.02)
    note(finished=args.until, rank=run.rank)


train()
note(returned=True)
