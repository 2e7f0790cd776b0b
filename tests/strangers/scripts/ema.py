"""Validates with averaged weights (the package torch_ema), which are swapped in and out again."""

import mine
import torch
from torch_ema import ExponentialMovingAverage

import keepstep


def build():
    model = mine.Plain()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ema = ExponentialMovingAverage(model.parameters(), decay=0.9)
    return keepstep.State(model=model, optimizer=optimizer, ema=ema).with_unprotected(batches=mine.held_out())


@torch.no_grad()
def evaluate(model, batches):
    return sum(mine.loss_of(model(x), y).item() for x, y in batches)


@keepstep.recoverable
def train(run, chosen):
    state = run.setup(build)
    model, optimizer, ema, batches = state.model, state.optimizer, state.ema, state.batches
    replica = run.ddp(model)

    def validation(step):
        with run.restored():
            ema.store()
            ema.copy_to()
            step.log(validation=evaluate(model, batches))
            ema.restore()

    if not chosen.as_first_written:
        run.evaluate(validation, every_steps=3)
    for step in run.steps(mine.Corpus(), global_batch=64, micro_batch=16, last_step=chosen.until):
        for x, y in step:
            step.backward(mine.loss_of(replica(x), y))
        step.commit(optimizer.step, ema.update)
        step.log(loss=step.loss)
        if chosen.as_first_written and step.number % 3 == 0:
            ema.store()
            ema.copy_to()
            step.log(validation=evaluate(model, batches))
            ema.restore()
    average = {f"{number}": tensor for number, tensor in enumerate(ema.shadow_params)}
    mine.leave(chosen.out, run.rank, model=model.state_dict(), optimizer=optimizer.state_dict(), average=average)


if __name__ == "__main__":
    train(mine.options())
