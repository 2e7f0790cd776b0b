"""Rank 1 dies while rank 0 waits for the GPU, which waits in a collective for rank 1. Writes down who came out of it.

With --group in a group that the function made itself, else in the world's.
"""

import argparse
import json
import os
import signal

import torch
import torch.distributed as dist

import keepstep

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--group", action="store_true")
parser.add_argument("--illegal", action="store_true", help="rank 1 spoils its CUDA context instead of dying")
args = parser.parse_args()


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((8,), float(index))


def build():
    torch.manual_seed(1)
    model = torch.nn.Linear(8, 8)
    return keepstep.State(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1e-3))


@keepstep.recoverable
def train(run):
    state = run.setup(build)
    model, optimizer = state.model, state.optimizer
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    model.to(device)
    replica = run.ddp(model)
    group = dist.new_group([0, 1]) if args.group else None
    sums = []
    for step in run.steps(Numbers(), global_batch=4, micro_batch=2, last_step=6):
        if step.number == 3 and run.entry == "start" and run.rank == 1:
            torch.cuda.synchronize()
            if args.illegal:
                torch.zeros(4, device=device)[torch.tensor([1 << 30], device=device)].sum().item()
            os.kill(os.getpid(), signal.SIGKILL)
        large = torch.ones(64 << 20, device=device)  # 256 MiB
        dist.all_reduce(large, group=group)
        torch.cuda.synchronize()  # step 3: rank 0 hangs here until the abort
        sums.append(large.unique().tolist())
        for x in step:
            step.backward(replica(x.to(device)).pow(2).mean())
        step.commit(optimizer.step)
    with open(os.path.join(args.out, f"{os.getpid()}.jsonl"), "a") as out:
        note = {"rank": run.rank, "pid": os.getpid(), "entry": run.entry, "sums": sums, "generation": run.generation}
        note["weights"] = [float(v) for v in model.weight.flatten().cpu()]
        print(json.dumps(note), file=out)


train()
