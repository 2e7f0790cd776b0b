"""Trains while two more threads of each rank use a process group each: threaded_groups.py OUT UNTIL.

Rank 0 begins a collective of one group and then one of the other; the other ranks finish the second group's before they
begin the first one's. Only groups that do not wait for each other survive that. Each process writes what it saw to
OUT/PID.jsonl.
"""

import datetime
import json
import os
import struct
import sys
import threading

import torch
import torch.distributed as dist

import keepstep
from common import Noise

out, until = sys.argv[1], int(sys.argv[2])
log = open(os.path.join(out, f"{os.getpid()}.jsonl"), "a", buffering=1)


def note(**values):
    log.write(json.dumps(values) + "\n")


def build():
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
    return keepstep.State(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2))


def collect(group, number, size, begun, failures):
    """A thread's part of one step: small sums and those of several chunks. Sets `begun` once it is in the first."""
    try:
        for count in (3, 70_000, 1):
            data = torch.full((count,), float(number))
            work = dist.all_reduce(data, group=group, async_op=True)
            begun.set()
            work.wait()
            if not torch.equal(data, torch.full((count,), float(number * size))):
                failures.append(f"step {number}: {data[0]} where {number * size} should be")
            gathered = [None] * size
            dist.all_gather_object(gathered, [number, count], group=group)
            if gathered != [[number, count]] * size:
                failures.append(f"step {number}: {gathered}")
    except BaseException as error:
        failures.append(error)
    finally:
        begun.set()


@keepstep.recoverable
def train(run):
    state = run.setup(build)
    model, optimizer = state.model, state.optimizer
    replica = run.ddp(model)
    # With a time limit: what waits for each other for ever is an error here, not a hang.
    limit = datetime.timedelta(seconds=60)
    groups = {name: dist.new_group(timeout=limit) for name in "ab"}
    note(entry=run.entry, rank=run.rank, generation=run.generation, version=run.version, pid=os.getpid())
    loss_function = torch.nn.MSELoss()
    for step in run.steps(Noise(), global_batch=16, micro_batch=4, last_step=until):
        order = "ab" if (step.number % 2 == 0) == (run.rank == 0) else "ba"
        failures = []
        begun = threading.Event()
        first, second = (
            threading.Thread(target=collect, args=(groups[name], step.number, run.world_size, begun, failures))
            for name in order
        )
        first.start()
        if run.rank == 0:
            begun.wait()
        else:
            first.join()
        second.start()
        try:
            for x, y in step:
                step.backward(loss_function(replica(x), y))
        finally:
            first.join()
            second.join()
            for failure in failures:
                note(thread_left=type(failure).__name__ if isinstance(failure, BaseException) else failure)
        for failure in failures:
            if isinstance(failure, BaseException):
                raise failure
            raise AssertionError(failure)
        step.log(**{f"ids_{run.rank}": step.sample_ids})
        step.commit(optimizer.step)
        step.log(bits=struct.pack("<d", step.loss).hex())
    note(final=[float(p.detach().double().sum()).hex() for p in model.parameters()], rank=run.rank)


train()
