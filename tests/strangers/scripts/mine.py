"""What these scripts share, as the author of several would have it: data, a model, and what a run leaves behind."""

import argparse
import hashlib
import json
import os
import signal
from pathlib import Path

import torch

import keepstep

UNTIL = 60
HALVES = {"factor": 0.5, "patience": 0, "threshold": 100}  # for ReduceLROnPlateau: nothing is good enough


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True, help="folder for what the run leaves")
    parser.add_argument("--until", type=int, default=UNTIL)
    parser.add_argument(
        "--as-first-written", action="store_true", help="the script before keepstep said what to change"
    )
    parser.add_argument("--die", default="", metavar="RANK:EVENT:NUMBER", help="is killed there, once in the job")
    parser.add_argument("--case", default="plain", help="of a script that has several")
    parser.add_argument("--global-batch", type=int, help="samples of a step, for elastic jobs")
    parser.add_argument("--sleep", type=float, default=0, help="in each step, seconds")
    parser.add_argument("--saves", help="folder of checkpoints that another job may have left")
    parser.add_argument("--publish", help="the name that the model's weights are published by, after each step")
    parser.add_argument("--keeps", help="folder that keepstep saves to, every third step")
    return parser.parse_args()


def on_entry(chosen):
    """What keepstep does beside a library's loop."""

    def begin(run):
        if chosen.publish:
            run.publish(chosen.publish, every_steps=1)
        if chosen.keeps:
            run.checkpoint(keepstep.Destination(chosen.keeps, every_steps=3))

    return begin if chosen.publish or chosen.keeps else None


def may_die(chosen, event, number):
    """Kills this process if `--die` says so."""
    once = Path(chosen.out) / "died"
    if chosen.die == f"{os.environ['RANK']}:{event}:{number}" and not once.exists():
        once.touch()
        os.kill(os.getpid(), signal.SIGKILL)


class Corpus(torch.utils.data.Dataset):
    """Numbered samples whose values follow from their number."""

    def __init__(self, length=512, first=0, width=64):
        self.length, self.first, self.width = length, first, width

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index >= self.length:
            raise IndexError(index)
        generator = torch.Generator().manual_seed(self.first + index)
        x = torch.randn(self.width, generator=generator)
        return x, torch.stack([x[:8].sum().tanh(), x.square().mean()])


class Net(torch.nn.Module):
    """Random numbers, and statistics that forward changes: training and evaluation differ."""

    def __init__(self, width=640, inputs=64, outputs=2, statistics=True):
        super().__init__()
        norm = torch.nn.BatchNorm1d if statistics else torch.nn.LayerNorm
        self.body = torch.nn.Sequential(
            torch.nn.Linear(inputs, width), norm(width), torch.nn.ReLU(), torch.nn.Dropout(0.1),
            torch.nn.Linear(width, width), norm(width), torch.nn.ReLU(),
        )  # fmt: skip
        self.head = torch.nn.Linear(width, outputs)

    def forward(self, x):
        return self.head(self.body(x))


class Plain(torch.nn.Module):
    """No statistics and no random numbers."""

    def __init__(self, width=512, inputs=64, outputs=2):
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(inputs, width), torch.nn.Tanh(), torch.nn.Linear(width, width), torch.nn.Tanh()
        )
        self.head = torch.nn.Linear(width, outputs)

    def forward(self, x):
        return self.head(self.body(x))


def loss_of(predicted, expected):
    return torch.nn.functional.mse_loss(predicted, expected)


def held_out():
    """What a model is judged by; no sample of Corpus()."""
    return torch.utils.data.DataLoader(Corpus(length=256, first=100_000), batch_size=32)


def tensors_of(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            yield from tensors_of(value[key])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_of(item)


def digest(state):
    """Of all tensors of a state_dict, in the order of their names."""
    total = hashlib.sha256()
    for tensor in tensors_of(state):
        total.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def leave(folder, rank, **states):
    """The digests of what training made, as this rank has it."""
    path = os.path.join(folder, f"final.{rank}")
    with open(path + ".partial", "w") as out:
        json.dump({name: digest(state) for name, state in states.items()}, out)
    os.replace(path + ".partial", path)
