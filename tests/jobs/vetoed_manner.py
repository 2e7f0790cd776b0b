"""A step sets the learning rate and a mode, and is vetoed: both are afterwards as the step set them.

vetoed_manner.py [--communicates]
"""

import sys

import torch

import keepstep


def build():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5))
    return keepstep.State(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


@keepstep.recoverable
def train(run):
    state = run.setup(build)
    model, optimizer = state.model, state.optimizer
    data = torch.utils.data.TensorDataset(torch.randn(64, 4))
    for step in run.steps(data, global_batch=4, micro_batch=4, last_step=4):
        rate = 0.1 / step.number
        optimizer.param_groups[0]["lr"] = rate
        model[1].train(step.number % 2 == 0)
        before = model[0].weight.detach().clone()
        for (batch,) in step:
            step.backward(model(batch).square().mean())
        vetoes = step.number == 3
        step.commit(
            optimizer.step,
            communicates="--communicates" in sys.argv,
            veto=lambda _, vetoes=vetoes: "it was asked to" if vetoes else None,
        )
        assert step.vetoed == vetoes == torch.equal(before, model[0].weight)
        assert optimizer.param_groups[0]["lr"] == rate, optimizer.param_groups[0]["lr"]
        assert model[1].training == (step.number % 2 == 0), step.number
    print("as set")


if __name__ == "__main__":
    train()
