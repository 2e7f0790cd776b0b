"""A loop over run.steps in each epoch, with what scripts set between two of them. Notes as those of left_anywhere.py.

Rank 1 ends itself by SIGKILL once in the job: in the validation after an epoch, or in its first step.
"""

import argparse
import json
import os
import signal
import struct
import time

import torch
import torch.distributed as dist

import keepstep

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--case", required=True)
parser.add_argument("--kill-behind", type=int, default=-1, help="this epoch, in its validation")
parser.add_argument("--kill-at", type=int, default=0, help="in this step")
parser.add_argument("--epochs", type=int, default=4)
args = parser.parse_args()
STEPS = 2  # of an epoch

log = open(os.path.join(args.out, f"{os.getpid()}.jsonl"), "a", buffering=1)


def note(**values):
    log.write(json.dumps(values) + "\n")


def maybe_die(run, now):
    if now and run.rank == 1:
        try:
            os.close(os.open(os.path.join(args.out, "died"), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        note(dies=run.rank)
        os.kill(os.getpid(), signal.SIGKILL)


class Noise(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.randn(8, generator=torch.Generator().manual_seed(index))


def build():
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 8))
    return keepstep.State(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))


@keepstep.recoverable(rehearse=False)
def train(run):
    state = run.setup(build)
    model, optimizer = state.model, state.optimizer
    model[0].requires_grad_(False)
    replica = run.ddp(model, find_unused_parameters=True)

    def resized(before, now):
        optimizer.param_groups[0]["lr"] *= now / before

    run.on("resize", resized)
    note(entry=run.entry, rank=run.rank, generation=run.generation, version=run.version, pid=os.getpid())
    first = run.version // STEPS if args.case in ("from-that-epoch", "halved-from-there") else 0
    for epoch in range(first, args.epochs):
        if args.case not in ("halved", "halved-from-there", "resized"):
            optimizer.param_groups[0]["lr"] = 0.1 * 0.1 ** (epoch // 2)
        if epoch == 2 and args.case == "thawed":
            model[0].requires_grad_(True)
            replica = run.ddp(model)
        model.train()
        for step in run.steps(Noise(), global_batch=8, micro_batch=4, last_step=(epoch + 1) * STEPS):
            for x in step:
                maybe_die(run, step.number == args.kill_at)
                step.backward((replica(x) - x).square().mean())
            step.commit(optimizer.step)
            rate = optimizer.param_groups[0]["lr"]
            step.log(bits=struct.pack("<d", step.loss).hex(), lr=rate, world=run.world_size)
            step.log(**{f"lr_of_{run.rank}": rate})
            time.sleep(0.02 if args.case == "resized" else 0)
        if args.case != "statistics":
            model.eval()
        with torch.no_grad():
            model(Noise()[0].repeat(2, 1))
        dist.all_reduce(torch.zeros(1))
        maybe_die(run, run.version == (args.kill_behind + 1) * STEPS)
        dist.all_reduce(torch.zeros(1))
        if args.case == "halved-from-there":
            model(Noise()[0].repeat(2, 1))  # a survivor leaves the validation here, and halves nothing
        if args.case.startswith("halved"):
            optimizer.param_groups[0]["lr"] *= 0.5
    sums = [float(tensor.double().sum()) for tensor in model.state_dict().values()]
    note(final=sums, buffers=0, calls=0, rank=run.rank)


train()
