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
    first, second = args.corpora
    state = keepstep.State(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1e-3))
    return state.with_unprotected(data=Blend({first: 0.7, second: 0.3}, sequence_length=16))


@keepstep.recoverable
def train(run):
    state = run.setup(build)
    replica = run.ddp(state.model)
    for step in run.steps(state.data, global_batch=21, micro_batch=3, last_step=args.until):  # seven micro-batches
        if step.number == args.truncate and run.rank == 0:
            os.truncate(f"{args.corpora[0]}.bin", 0)
        mine = step._plan.micros
        for number, tokens in zip(mine, step, strict=True):
            at = (number - mine.start) * 3
            digest = hashlib.sha256(tokens.numpy().tobytes()).hexdigest()
            step.log(**{f"micro_{number}": {"samples": step.sample_ids[at : at + 3], "digest": digest}})
            step.backward(replica(tokens[:, :16].float() / 60_000).square().mean())
        step.log(seed=run.seed)
        step.commit(state.optimizer.step)


train()
