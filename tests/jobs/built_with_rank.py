"""A state that is built when the process has a rank, and a process group (run.setup(with_rank=True))."""

import argparse
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist

import keepstep
from common import Noise

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
args = parser.parse_args()
log = open(args.out / f"{os.getpid()}.jsonl", "a", buffering=1)


def note(**values):
    log.write(json.dumps(values) + "\n")


@keepstep.recoverable
def train(run):
    def build():
        note(built_by=dist.get_rank(), of=dist.get_world_size(), generation=run.generation)
        pair = dist.new_group([0, 1])
        model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 16))
        state = keepstep.State(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2))
        return state.with_unprotected(pair=pair)

    state = run.setup(build, with_rank=True)
    model = run.ddp(state.model, process_group=state.pair)
    note(entry=str(run.entry), rank=run.rank, generation=run.generation)
    for step in run.steps(Noise(), global_batch=16, micro_batch=2, last_step=12):
        for inputs, _ in step:
            step.backward((model(inputs) - inputs).square().mean())
        step.commit(state.optimizer.step)
        step.log(bits=step.loss.hex())


train()
