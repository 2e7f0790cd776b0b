"""A job whose batches, learning rate and weights follow from the number of ranks, in float64.

Each process appends JSON lines to OUT/PID.jsonl, as tests/jobs/small.py does; what a step used goes to the metrics too.
"""

import argparse
import json
import os
import struct
import time

import torch

import keepstep

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--until", type=int, default=6)
parser.add_argument("--config", type=json.loads, default={"default": {"global_batch": 32, "micro_batch": 2}})
parser.add_argument("--rule", default="constant")
parser.add_argument("--base-batch", type=int, default=32)
parser.add_argument("--no-position", action="store_true", help="do not say where the training stands in its samples")
parser.add_argument("--reproducible", action="store_true")
parser.add_argument("--tokens", action="store_true", help="losses are sums over tokens, of which samples have 1 to 9")
parser.add_argument("--veto-at", type=int, default=0)
parser.add_argument("--communicates", action="store_true")
parser.add_argument("--sleep", type=float, default=0.0, help="seconds, after each step")
args = parser.parse_args()
config = keepstep.scale_config(args.config)

log = open(os.path.join(args.out, f"{os.getpid()}.jsonl"), "a", buffering=1)


def note(**values):
    log.write(json.dumps(values) + "\n")


class Numbers:
    """Without end, in their own order: sample i stands at position i of the training."""

    def __len__(self):
        return 1 << 40

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        tokens = 1 + int(torch.randint(9, (), generator=generator))
        x = torch.zeros(9, 6, dtype=torch.float64)
        x[:tokens] = torch.randn(tokens, 6, dtype=torch.float64, generator=generator)
        return x, tokens


def build():
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    return keepstep.State(
        model=model, optimizer=optimizer, schedule=schedule, position=torch.zeros((), dtype=torch.int64)
    )


@keepstep.recoverable
def train(run):
    state = run.setup(build)
    model, optimizer, schedule, position = state.model, state.optimizer, state.schedule, state.position
    replica = run.ddp(model, reproducible=args.reproducible)
    note(entry=run.entry, rank=run.rank, generation=run.generation, version=run.version, pid=os.getpid())
    steps = run.steps(
        Numbers(), global_batch=config.value("global_batch"), micro_batch=config.value("micro_batch"),
        last_step=args.until, shuffle=False, position=None if args.no_position else position,
    )  # fmt: skip
    for step in steps:
        for x, tokens in step:
            each = ((replica(x) - x.sum(-1, keepdim=True)) ** 2).sum((1, 2))
            if args.tokens:
                step.backward(each.sum(), count=int(tokens.sum()))
            else:
                step.backward(each.mean())
        norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
        note(step=step.number, generation=run.generation, rank=run.rank, ids=step.sample_ids)
        rates = []
        step.commit(
            lambda step=step: keepstep.torch.scale_lr(
                optimizer, args.base_batch, step.global_batch, args.rule, schedule
            ),
            lambda rates=rates: rates.append(optimizer.param_groups[0]["lr"]),
            optimizer.step,
            schedule.step,
            communicates=args.communicates,
            veto=(lambda step: step.number == args.veto_at) if args.veto_at else None,
        )
        step.log(
            world=run.world_size, batch=step.global_batch, position=int(position), norm=float(norm), rates=rates,
            bits=struct.pack("<d", step.loss).hex(), share=len(step.sample_ids), updates=schedule.last_epoch,
            vetoed=step.vetoed, changes=keepstep.elastic_event_detected(),
        )  # fmt: skip
        time.sleep(args.sleep)
    note(final=[float(p.double().sum()) for p in model.parameters()], rank=run.rank, position=int(position))


train()
