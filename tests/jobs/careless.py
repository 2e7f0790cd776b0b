"""Scripts with one mistake each that `keepstep certify` must find."""

import argparse
import os

import torch

import keepstep

parser = argparse.ArgumentParser()
parser.add_argument("mode", choices=["log", "random", "unprotected", "stubborn"])
parser.add_argument("--out", required=True)
args = parser.parse_args()


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((4,), float(index % 7)), torch.tensor([1.0])


def note(name):
    with open(os.path.join(args.out, name), "a") as file:
        file.write("a line\n")


def build():
    model = torch.nn.Linear(4, 1)
    return keepstep.State(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01))


@keepstep.recoverable(rehearse=False)
def train(run):
    state = run.setup(build)
    model, optimizer = state.model, state.optimizer
    if args.mode == "unprotected":
        other = torch.optim.SGD(model.parameters(), lr=0.1)
        assert other is not optimizer
    replica = run.ddp(model)
    if args.mode == "log" and run.rank == 0:
        note("entered.txt")
        print("training begins", flush=True)
    run.once("guarded", note, "guarded.txt")
    if args.mode == "stubborn" and run.entry != "start":
        raise ValueError("this script can be entered once only")
    for step in run.steps(Numbers(), global_batch=8, micro_batch=2, last_step=500):
        for x, y in step:
            loss = torch.nn.functional.mse_loss(replica(x), y)
            if args.mode == "random":
                loss = loss * (1 + os.urandom(1)[0] / 256)
            step.backward(loss)
        step.commit(optimizer.step)


train()
