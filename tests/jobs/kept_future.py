"""A future of a thread's collective is kept over entries of the function: kept_future.py OUT."""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

import keepstep

out = sys.argv[1]
kept = []


@keepstep.recoverable
def train(run):
    model = run.setup(lambda: keepstep.State(model=torch.nn.Linear(4, 4))).model
    replica = run.ddp(model)
    beside = dist.new_group()
    with open(os.path.join(out, f"{os.getpid()}.jsonl"), "a") as log:
        log.write(json.dumps({"entry": run.entry, "rank": run.rank}) + "\n")
    if kept:
        kept[0].result()  # of a generation that is over
    for step in run.steps(torch.ones(64, 4), global_batch=4, micro_batch=2, last_step=6):
        for x in step:
            step.backward(replica(x).square().mean())
        if step.number == 2 and run.rank == 0:
            kept.append(ThreadPoolExecutor(1).submit(dist.barrier, beside))  # rank 1 never comes to it
        step.commit()


train()
