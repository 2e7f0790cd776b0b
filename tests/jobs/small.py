"""A small training job for tests: deterministic, and it writes down what it did.

Each process appends JSON lines to OUT/PID.jsonl: entries, committed steps with their loss as exact bits, and the digest
of the final protected state.
"""

import argparse
import json
import os
import struct

import torch

import keepstep
from common import Noise, digest


class Plain(torch.nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.blocks = torch.nn.ModuleList(
            [torch.nn.Linear(16, width), torch.nn.Linear(width, width), torch.nn.Linear(width, width)]
        )
        self.head = torch.nn.Linear(width, 4)

    def forward(self, x):
        for block in self.blocks:
            x = torch.tanh(block(x))
        return self.head(x)


class Rich(torch.nn.Module):
    """BatchNorm and dropout: state that forward changes, and random numbers in forward."""

    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(16, 48),
            torch.nn.BatchNorm1d(48),
            torch.nn.ReLU(),
            torch.nn.Dropout(0.2),
            torch.nn.Linear(48, 48),
            torch.nn.BatchNorm1d(48),
            torch.nn.ReLU(),
        )
        self.head = torch.nn.Linear(48, 4)

    def forward(self, x):
        return self.head(self.body(x))


parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--until", type=int, default=12)
parser.add_argument("--model", choices=["plain", "rich"], default="plain")
parser.add_argument("--global-batch", type=int, default=16)
parser.add_argument("--micro-batch", type=int, default=2)
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--note-ids", action="store_true", help="write down the samples of each attempt at a step")
parser.add_argument("--raise-at", type=int, default=0, help="raise at this step every time")
parser.add_argument("--sleep", type=float, default=0.0)
parser.add_argument("--by-hand", action="store_true", help="make process group and DDP wrapper oneself")
parser.add_argument("--break-update", action="store_true", help="the update raises on every rank")
parser.add_argument("--alone", action="store_true", help="no wrapper: each rank trains its own model")
parser.add_argument("--veto-at", type=int, default=0, help="the last rank vetoes the update of this step")
parser.add_argument("--rehearse", action="store_true", help="spares do, though nothing is compiled")
parser.add_argument("--backend", default="keepstep", help="with --by-hand")
parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
parser.add_argument("--build-on-device", action="store_true", help="build does, a spare's too")
parser.add_argument("--saves", help="a folder for checkpoints, and the agents keep copies of each step")
args = parser.parse_args()
if args.device == "cuda":
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)

log = open(os.path.join(args.out, f"{os.getpid()}.jsonl"), "a", buffering=1)


def note(**values):
    log.write(json.dumps(values) + "\n")


def build():
    model = Rich() if args.model == "rich" else Plain(args.width)
    if args.build_on_device:
        model.to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 5))
    # A scale this high overflows at first: the first updates are skipped, and the scale falls.
    scale = 2.0**126 if args.model == "rich" else 1.0
    scaler = torch.amp.GradScaler(args.device, init_scale=scale, backoff_factor=2.0**-6, growth_interval=4)
    # Its counter is a buffer that the update changes.
    average = torch.optim.swa_utils.AveragedModel(model)
    return keepstep.State(model=model, optimizer=optimizer, schedule=schedule, scaler=scaler, average=average)


@keepstep.recoverable(rehearse=args.rehearse or None)
def train(run):
    run.on("interrupt", lambda reason: note(interrupted=reason))
    state = run.setup(build)
    model, optimizer, schedule, scaler, average = (
        state.model,
        state.optimizer,
        state.schedule,
        state.scaler,
        state.average,
    )
    if args.saves:
        run.checkpoint(keepstep.Destination(args.saves, every_steps=3), memory_every_steps=1)
    device = torch.device("cpu")
    if args.device == "cuda":
        # A spare does not know its GPU, so it builds in main memory and waits here.
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
        model.to(device)
        average.to(device)
    if args.alone:
        replica = model
    elif args.by_hand:
        torch.distributed.init_process_group(args.backend)
        replica = torch.nn.parallel.DistributedDataParallel(model)
    else:
        replica = run.ddp(model)
    if not run.rehearsing:
        note(entry=run.entry, rank=run.rank, generation=run.generation, version=run.version, pid=os.getpid())
    loss_function = torch.nn.MSELoss()
    for step in run.steps(Noise(), global_batch=args.global_batch, micro_batch=args.micro_batch, last_step=args.until):
        for x, y in step:
            x, y = x.to(device), y.to(device)
            step.backward(loss_function(replica(x), y) * (1000 if args.model == "rich" else 1), scaler=scaler)
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        step.log(**{f"ids_{run.rank}": step.sample_ids})
        if args.note_ids:
            note(step=step.number, generation=run.generation, rank=run.rank, ids=step.sample_ids)
        if args.raise_at == step.number and run.rank == 0:
            raise ValueError("a bug in the user's code")
        if args.break_update:

            def broken():
                raise OSError("no memory for the update")

            step.commit(lambda: scaler.step(optimizer), broken)
        vetoes = step.number == args.veto_at and run.rank == run.world_size - 1
        step.commit(
            lambda: scaler.step(optimizer),
            scaler.update,
            schedule.step,
            lambda: average.update_parameters(model),
            veto=(lambda _step, vetoes=vetoes: "it was asked to" if vetoes else None) if args.veto_at else None,
        )
        bits = struct.pack("<d", step.loss).hex()
        step.log(bits=bits, scale=scaler.get_scale(), world=run.world_size)
        note(step=step.number, rank=run.rank, generation=run.generation, bits=bits, vetoed=step.vetoed)
        if args.sleep:
            import time

            time.sleep(args.sleep)
    tensors = [*model.parameters(), *average.parameters(), average.n_averaged]
    for parameter in model.parameters():
        state = optimizer.state[parameter]
        tensors += [state[key] for key in sorted(state)]
    note(
        final=digest(tensors),
        buffers=digest(model.buffers()),
        rank=run.rank,
        lr=schedule.get_last_lr(),
        scale=scaler.get_scale(),
    )


train()
