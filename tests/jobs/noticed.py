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
    return model, torch.optim.SGD(model.parameters(), lr=0.01), done


@keepstep.recoverable
def train(run):
    model, optimizer, done = run.keep(build)
    run.protect(model=model, optimizer=optimizer)

    def save():
        note(saving=done + run.version, rank=run.rank, because=run.notice)
        if run.rank == args.die_once and run.generation == 1:
            os.kill(os.getpid(), 9)
        torch.distributed.barrier()  # peers are there
        if run.rank == 0:
            torch.save((done + run.version, model.state_dict()), f"{saved_at}.half")
            os.replace(f"{saved_at}.half", saved_at)

    run.on_notice(save)
    replica = run.replicate(model)
    data = torch.utils.data.TensorDataset(torch.randn(64, 8))
    note(start=done + run.version, rank=run.rank, restarts=int(os.environ.get("SLURM_RESTART_COUNT", "0")))
    for step in run.steps(data, global_batch=16, micro_batch=2, until=args.until - done):
        for (x,) in step:
            step.backward(replica(x).square().mean())
        run.commit(optimizer.step)
        note(step=done + step.number, rank=run.rank, notice=run.notice)
        time.sleep(0.02)
    note(finished=args.until, rank=run.rank)


train()
note(returned=True)
