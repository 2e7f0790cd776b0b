"""A job that trains on blended corpora. It publishes, by micro-batch, its samples and a digest of their bits."""

import argparse
import hashlib
import os

import torch

import keepstep
from keepstep.data import Blend

parser = argparse.ArgumentParser()
parser.add_argument("--corpora", nargs=2, required=True)
parser.add_argument("--until", type=int, required=True)
parser.add_argument("--truncate", type=int, default=0, help="the step at which somebody truncates the first corpus")
args = parser.parse_args()


def build():
    model = torch.nn.Linear(16, 1)
    return model, torch.optim.SGD(model.parameters(), lr=1e-3)


@keepstep.recoverable
def train(run):
    model, optimizer = run.keep(build)
    first, second = args.corpora
    data = run.keep(lambda: Blend({first: 0.7, second: 0.3}, sequence_length=16))
    run.protect(model=model, optimizer=optimizer)
    replica = run.replicate(model)
    for step in run.steps(data, global_batch=21, micro_batch=3, until=args.until):  # seven micro-batches
        if step.number == args.truncate and run.rank == 0:
            os.truncate(f"{first}.bin", 0)
        mine = step._plan.micros
        for number, tokens in zip(mine, step, strict=True):
            at = (number - mine.start) * 3
            digest = hashlib.sha256(tokens.numpy().tobytes()).hexdigest()
            run.log(**{f"micro_{number}": {"samples": step.sample_ids[at : at + 3], "digest": digest}})
            step.backward(replica(tokens[:, :16].float() / 60_000).square().mean())
        run.log(seed=run.seed)
        run.commit(optimizer.step)


train()
