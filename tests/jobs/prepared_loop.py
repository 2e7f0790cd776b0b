"""A plain PyTorch loop, as people have it, over what run.prepare returns. Notes as those of small.py."""

import argparse
import json
import os
import signal
import struct
import time

import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, Sampler

import keepstep
from common import digest

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--case", default="plain")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--samples", type=int, default=26)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--global-batch", type=int, help="samples; then nothing is accumulated but what follows from it")
parser.add_argument("--sleep", type=float, default=0, help="in each step, seconds")
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--break-at", type=int, default=0, help="leave each epoch after a step that this divides")
parser.add_argument("--evaluate", action="store_true", help="after each epoch")
parser.add_argument("--die-behind", type=int, help="rank 1, before it evaluates this epoch")
parser.add_argument("--saves", help="a folder for checkpoints")
parser.add_argument("--last-step", type=int)
args = parser.parse_args()

log = open(os.path.join(args.out, f"{os.getpid()}.jsonl"), "a", buffering=1)


def note(**values):
    log.write(json.dumps(values) + "\n")


class Augmented(torch.utils.data.Dataset):
    """Each sample is disturbed by numbers of all three libraries."""

    def __len__(self):
        return args.samples

    def __getitem__(self, index):
        import random

        import numpy

        x = torch.randn(16, generator=torch.Generator().manual_seed(index))
        noise = torch.rand(16) + random.random() + float(numpy.random.random())
        return index, x + 0.1 * noise, x[:4] * 2


class Own(Sampler):
    """A user's: short samples first, in an order that the epoch changes."""

    def __init__(self):
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return args.samples

    def __iter__(self):
        return iter(sorted(range(args.samples), key=lambda i: (i * (self.epoch + 3)) % 7))


class Forgetful(Sampler):
    """Another order each time it is asked, which follows from nothing but that."""

    def __init__(self):
        self.asked = 0

    def __len__(self):
        return args.samples

    def __iter__(self):
        self.asked += 1
        return iter(sorted(range(args.samples), key=lambda i: (i * (self.asked + 3)) % 7))


def make_loader():
    data = Augmented()
    how = {"num_workers": args.workers, "persistent_workers": args.workers > 0}
    if args.case == "distributed":
        return DataLoader(data, batch_size=2, sampler=DistributedSampler(data, 2, 0, seed=5), **how)
    if args.case == "own":
        return DataLoader(data, batch_sampler=BatchSampler(Own(), 2, drop_last=True), **how)
    if args.case == "forgetful":
        return DataLoader(data, batch_size=2, sampler=Forgetful(), **how)
    if args.case == "cached":
        return keepstep.data.cached(DataLoader(data, batch_size=2, shuffle=True))
    return DataLoader(data, batch_size=2, shuffle=True, **how)


def build():
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.Dropout(0.2), torch.nn.Linear(32, 4)
    )
    found = {}
    if args.case == "two":
        first, *rest = model.parameters()
        found["other"] = torch.optim.SGD([first], lr=0.05, momentum=0.9)
        optimizer = torch.optim.AdamW(rest, lr=1e-2)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if args.case == "plateau":  # nothing is good enough for it
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=100)
    else:
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 1 / (1 + s))
    if args.case == "scaler":
        found["scaler"] = torch.amp.GradScaler("cpu", init_scale=2.0**126, backoff_factor=2.0**-6, growth_interval=4)
    return keepstep.State(model=model, optimizer=optimizer, schedule=schedule, **found)


@keepstep.recoverable(rehearse=False)
def train(run):
    state = run.setup(build)
    if args.saves:
        run.checkpoint(keepstep.Destination(args.saves, every_steps=3))
    moves = {{"epochs": "epoch_schedule", "plateau": "plateau"}.get(args.case, "schedule"): state.schedule}
    optimizers = [state.optimizer, state.other] if args.case == "two" else state.optimizer
    scaler = None
    prepared = run.prepare(
        state.model, optimizers, make_loader(), **moves, global_batch=args.global_batch, last_step=args.last_step,
        scaler=getattr(state, "scaler", None),
    )  # fmt: skip
    model, optimizer, loader, *more = prepared
    if args.case == "scaler":
        [scaler] = more
    note(entry=run.entry, rank=run.rank, generation=run.generation, version=run.version, pid=os.getpid())
    loss_function = torch.nn.MSELoss()
    accumulate = args.accumulate if args.case == "hasty" else loader.accumulation or args.accumulate
    ids, losses = [], []
    for epoch in loader.epochs(args.epochs) if args.evaluate else range(args.epochs):
        model.train()
        for number, (indices, x, y) in enumerate(loader):
            ids += indices.tolist()
            loss = loss_function(model(x), y) / accumulate
            losses.append(loss.item())
            (loss if scaler is None else scaler.scale(loss)).backward()
            ends = loader.ends_step if args.global_batch and args.case != "hasty" else (number + 1) % accumulate == 0
            if not ends and not (args.case == "flushed" and number + 1 == len(loader)):
                continue
            if args.global_batch:
                note(step=loader.step, generation=run.generation, ids=ids, loss=sum(losses) / run.world_size)
                time.sleep(args.sleep)
            bits = struct.pack(f"<{len(losses)}d", *losses).hex()
            rate = state.optimizer.param_groups[0]["lr"]
            loader.log(**{f"ids_{run.rank}": ids, f"bits_{run.rank}": bits}, rate=rate, epoch=epoch)
            if scaler is not None:
                scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if scaler is not None:
                scaler.step(optimizer)
                scaler.update()
            elif args.case == "two":
                for each in optimizer:
                    each.step()
            else:
                optimizer.step()
            for each in optimizer if args.case == "two" else [optimizer]:
                each.zero_grad()
            ids, losses = [], []
            if args.break_at and loader.step % args.break_at == 0:
                break
        if args.evaluate:
            model.eval()
            if (epoch, run.rank, run.entry) == (args.die_behind, 1, "start"):
                os.kill(os.getpid(), signal.SIGKILL)
            with torch.no_grad():
                value = model(torch.ones(2, 16))
            torch.distributed.all_reduce(value)
            note(evaluated=epoch, value=digest([value]), rank=run.rank)
            if args.case == "plateau":
                [plateau] = more
                plateau.step(value.square().mean())
    states = [
        each[key] for each in map(state.optimizer.state.get, state.model.parameters()) if each for key in sorted(each)
    ]
    note(
        final=digest([*state.model.parameters(), *states]),
        buffers=digest(state.model.buffers()),
        rank=run.rank,
        lr=state.schedule.get_last_lr(),
        scale=state.scaler.get_scale() if scaler is not None else None,
        version=run.version,
    )


train()
