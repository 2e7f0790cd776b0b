"""Several recoverable functions in one script, one after another: JSON lines in OUT/PID.jsonl say what a process did.

Pre-training, then fine-tuning of what it returned, then pre-training of another model. `--die FUNCTION:WHEN:RANK` kills
that rank once: WHEN is a step (in its backward), `returned` (all ranks have), or `built` (before it has a rank).
"""

import argparse
import json
import os
import signal
from pathlib import Path

import torch

import keepstep
from common import Noise, digest

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--die", action="append", default=[])
parser.add_argument("--return", dest="returned", choices=["state", "model", "nothing"], default="state")
parser.add_argument("--checkpoints", type=Path, help="each function has a folder below this")
parser.add_argument("--nested", action="store_true")
args = parser.parse_args()


class Net(torch.nn.Module):
    """With statistics that forward changes, and random numbers in forward."""

    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(16, 48), torch.nn.BatchNorm1d(48), torch.nn.ReLU(), torch.nn.Dropout(0.2)
        )
        self.head = torch.nn.Linear(48, 4)

    def forward(self, x):
        return self.head(self.body(x))


log = open(args.out / f"{os.getpid()}.jsonl", "a", buffering=1)


def note(**values):
    log.write(json.dumps(values) + "\n")


def maybe_die(function, when, rank):
    if f"{function}:{when}:{rank}" not in args.die:
        return
    try:
        os.close(os.open(args.out / f"died-{function}-{when}-{rank}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    note(dies=function, when=when)
    os.kill(os.getpid(), signal.SIGKILL)


def loop(run, name, state, last_step):
    if args.checkpoints:
        run.checkpoint(keepstep.Destination(args.checkpoints / name, every_steps=2))
    run.once("told", note, once=name)
    model = run.ddp(state.model)
    note(entry=str(run.entry), function=name, rank=run.rank, version=run.version, generation=run.generation)
    for step in run.steps(Noise(), global_batch=16, micro_batch=2, last_step=last_step):
        for inputs, targets in step:
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            maybe_die(name, str(step.number), run.rank)
            step.backward(loss)
        step.commit(state.optimizer.step)
        note(function=name, step=step.number, rank=run.rank, loss=step.loss.hex())
    return digest(state.model.parameters())


def build():
    model = Net()
    return keepstep.State(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2))


@keepstep.recoverable
def pretrain(run, name, last_step):
    state = run.setup(build)
    if args.nested:
        finetune(state)
    bits = loop(run, name, state, last_step)
    note(function=name, final=bits, rank=run.rank)
    what = {"state": state, "model": state.model, "nothing": None}[args.returned]
    return what, bits


@keepstep.recoverable
def finetune(run, pretrained):
    def build_on_it():
        model = build().model if pretrained is None else pretrained.model
        for parameter in model.body.parameters():
            parameter.requires_grad_(False)
        maybe_die("finetune", "built", "any")
        return keepstep.State(model=model, optimizer=torch.optim.SGD(model.head.parameters(), lr=1e-2))

    bits = loop(run, "finetune", run.setup(build_on_it), 8)
    note(function="finetune", final=bits, rank=run.rank)
    return {"bits": bits, "losses": [1.0, float("nan")]}


state, bits = pretrain("pretrain", 6)
note(returned=bits)
maybe_die("pretrain", "returned", os.environ.get("RANK"))
told = finetune(state)
note(told=told["bits"])
again, bits = pretrain("again", 4)
note(returned_again=bits)
