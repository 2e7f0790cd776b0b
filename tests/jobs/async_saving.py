"""Saves with dcp.async_save, in a group of its own, while it trains: async_saving.py OUT UNTIL EVERY.

Checkpoints go to OUT/saved/step-N; a digest of each saved state goes to OUT/PID.jsonl.
"""

import hashlib
import json
import os
import struct
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import keepstep
from common import Noise

out, until, every = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
log = open(os.path.join(out, f"{os.getpid()}.jsonl"), "a", buffering=1)


def note(**values):
    log.write(json.dumps(values) + "\n")


def build():
    model = torch.nn.Sequential(torch.nn.Linear(16, 256), torch.nn.Tanh(), torch.nn.Linear(256, 4))
    return keepstep.State(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2))


def digest(model):
    total = hashlib.sha256()
    for _, tensor in sorted(model.state_dict().items()):
        total.update(tensor.detach().contiguous().numpy().tobytes())
    return total.hexdigest()


@keepstep.recoverable
def train(run):
    state = run.setup(build)
    model, optimizer = state.model, state.optimizer
    replica = run.ddp(model)
    saving = dist.new_group()
    saved = None
    note(entry=run.entry, rank=run.rank, generation=run.generation, version=run.version, pid=os.getpid())
    loss_function = torch.nn.MSELoss()
    for step in run.steps(Noise(), global_batch=16, micro_batch=4, last_step=until):
        for x, y in step:
            step.backward(loss_function(replica(x), y))
        step.log(**{f"ids_{run.rank}": step.sample_ids})
        step.commit(optimizer.step)
        step.log(bits=struct.pack("<d", step.loss).hex())
        if step.number % every == 0:
            if saved is not None:
                saved.result()
            note(saved=step.number, digest=digest(model))
            saved = dcp.async_save(
                {"model": model.state_dict()}, checkpoint_id=f"{out}/saved/step-{step.number}", process_group=saving
            )
    if saved is not None:
        saved.result()
    note(final=digest(model), rank=run.rank)


train()
