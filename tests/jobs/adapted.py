"""Adapters on a frozen base that is much larger: what is sent, copied and saved, and how the base may be wrong."""

import argparse
import functools
import json
import os
import struct

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import keepstep
from common import digest

BASES = ["kept", "differs", "averaged", "averaged through data", "scaled at step 5", "a row through data"]
parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--until", type=int, default=12)
parser.add_argument("--saves")
parser.add_argument("--memory", action="store_true", help="with --saves: also copies in the agents' memory")
parser.add_argument("--base", choices=BASES, default="kept")
parser.add_argument("--shard", action="store_true", help="by fully_shard")
args = parser.parse_args()
log = open(os.path.join(args.out, f"{os.getpid()}.jsonl"), "a", buffering=1)


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.randn(512, generator=torch.Generator().manual_seed(index))


class Adapted(torch.nn.Module):
    def __init__(self, width=512, rank=1):
        super().__init__()
        self.base = torch.nn.Linear(width, width, bias=False).requires_grad_(False)
        self.down = torch.nn.Linear(width, rank, bias=False)
        self.up = torch.nn.Linear(rank, width, bias=False)
        self.average = torch.nn.Linear(width, rank, bias=False).requires_grad_(False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x) + 0.1 * self.average(x))

    def follow(self, step):
        """What the update does to parameters that no optimizer has: the average comes nearer to what is trained."""
        if args.base == "averaged":
            with torch.no_grad():
                self.average.weight.lerp_(self.down.weight, 0.5)
        elif args.base == "averaged through data":
            self.average.weight.data.lerp_(self.down.weight.data, 0.5)
        elif args.base == "scaled at step 5" and step == 5:
            with torch.no_grad():
                self.base.weight.mul_(0.5)
        elif args.base == "a row through data":  # the first, which only one rank has
            held = self.base.weight.data
            held = held.to_local() if args.shard else held
            if not args.shard or dist.get_rank() == 0:
                held[0] += 0.1


def build(run):
    model = Adapted()
    if args.base == "differs":
        model.base.weight.data += os.getpid() % 1000 + 1
    if args.shard:
        fully_shard(model, mesh=init_device_mesh("cpu", (run.world_size,)))
    return keepstep.State(model=model, optimizer=torch.optim.AdamW([*model.down.parameters(), *model.up.parameters()]))


@keepstep.recoverable
def train(run):
    state = run.setup(lambda: build(run), sharded=args.shard)
    if args.saves:
        run.checkpoint(keepstep.Destination(args.saves, every_steps=4), memory_every_steps=1 if args.memory else None)
    model = state.model if args.shard else run.ddp(state.model)
    for step in run.steps(Numbers(), global_batch=8, micro_batch=2, last_step=args.until):
        for x in step:
            step.backward(model(x).square().mean())
        step.commit(state.optimizer.step, functools.partial(state.model.follow, step.number))
        step.log(bits=struct.pack("<d", step.loss).hex())
    parts = [each.to_local() if args.shard else each for each in state.model.parameters()]
    note = {"rank": run.rank, "final": digest(parts), "version": run.version}
    log.write(json.dumps(note | {"copied": run.shard_counts().bytes}) + "\n")


train()
