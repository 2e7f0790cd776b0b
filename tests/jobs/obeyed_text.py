"""Fails in its first step, again and again, with a text that a terminal would obey."""

import torch

import keepstep


@keepstep.recoverable
def train(run):
    run.setup(lambda: keepstep.State(model=torch.nn.Linear(4, 1)))
    for step in run.steps([torch.ones(4)] * 2, global_batch=2, micro_batch=2, last_step=2):
        for _ in step:
            raise ValueError("[/INST] \x1b]0;title\x07\x1b[2J\u202etxt.exe")


train()
