"""Averaged weights, and their BatchNorm's statistics from a pass over data, as torch.optim.swa_utils says to."""

import mine
import torch
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn

import keepstep


def build():
    model = mine.Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return keepstep.State(
        model=model, optimizer=optimizer, average=AveragedModel(model), schedule=SWALR(optimizer, swa_lr=0.005)
    ).with_unprotected(batches=mine.held_out())


@keepstep.recoverable
def train(run, chosen):
    state = run.setup(build)
    model, optimizer, average, schedule, batches = (
        state.model,
        state.optimizer,
        state.average,
        state.schedule,
        state.batches,
    )
    replica = run.ddp(model)
    for step in run.steps(mine.Corpus(), global_batch=64, micro_batch=16, last_step=chosen.until):
        for x, y in step:
            step.backward(mine.loss_of(replica(x), y))
        if step.number % 3 == 0:
            step.commit(
                optimizer.step, schedule.step, lambda: average.update_parameters(model),
                lambda: update_bn(batches, average),
            )  # fmt: skip
        else:
            step.commit(optimizer.step)
        step.log(loss=step.loss)
    mine.leave(chosen.out, run.rank, model=model.state_dict(), average=average.state_dict())


if __name__ == "__main__":
    train(mine.options())
