"""Trains on the GPU, saves to a folder and, with --memory, to the agents. Writes down what it ended with."""

import argparse
import json
import os

import torch

import keepstep

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--until", type=int, default=12)
parser.add_argument("--saves", help="a folder")
parser.add_argument("--memory", action="store_true", help="with --saves: the agents keep a copy, too")
args = parser.parse_args()
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
torch.use_deterministic_algorithms(True)


class Noise(torch.utils.data.Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        return torch.randn(16, generator=torch.Generator().manual_seed(index))


def build():
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Dropout(0.1), torch.nn.Tanh(), torch.nn.Linear(64, 4))
    return keepstep.State(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2))


@keepstep.recoverable
def train(run):
    state = run.setup(build)
    model, optimizer = state.model, state.optimizer
    if args.saves:
        run.checkpoint(keepstep.Destination(args.saves, every_steps=3), memory_every_steps=1 if args.memory else None)
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    model.to(device)
    replica = run.ddp(model)
    for step in run.steps(Noise(), global_batch=24, micro_batch=2, last_step=args.until):
        for x in step:
            step.backward(replica(x.to(device)).pow(2).mean())
        step.commit(optimizer.step)
    final = []
    for parameter in model.parameters():
        moments = optimizer.state[parameter]
        final += [parameter, *(moments[name] for name in sorted(moments))]
    with open(os.path.join(args.out, f"{os.getpid()}.jsonl"), "a") as out:
        print(json.dumps({"rank": run.rank, "final": [tensor.tolist() for tensor in final]}), file=out)


train()
