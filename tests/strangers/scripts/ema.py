"""Validates with averaged weights (the package torch_ema), which are swapped in and out again."""

import mine
import torch
from torch_ema import ExponentialMovingAverage

import keepstep


def build():
    model = mine.Plain()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ema = ExponentialMovingAverage(model.parameters(), decay=0.9)
    return model, optimizer, ema, mine.held_out()


@torch.no_grad()
def evaluate(model, batches):
    return sum(mine.loss_of(model(x), y).item() for x, y in batches)


@keepstep.recoverable
def train(run, chosen):
    model, optimizer, ema, batches = run.keep(build)
    run.protect(model=model, optimizer=optimizer, ema=ema)
    replica = run.replicate(model)

    def validation(step):
        with run.restored():
            ema.store()
            ema.copy_to()
            run.log(validation=evaluate(model, batches))
            ema.restore()

    if not chosen.as_first_written:
        run.evaluate(validation, every=3)
    for step in run.steps(mine.Corpus(), global_batch=64, micro_batch=16, until=chosen.until):
        for x, y in step:
            step.backward(mine.loss_of(replica(x), y))
        run.commit(optimizer.step, ema.update)
        run.log(loss=step.loss)
        if chosen.as_first_written and step.number % 3 == 0:
            ema.store()
            ema.copy_to()
            run.log(validation=evaluate(model, batches))
            ema.restore()
    average = {f"{number}": tensor for number, tensor in enumerate(ema.shadow_params)}
    mine.leave(chosen.out, run.rank, model=model.state_dict(), optimizer=optimizer.state_dict(), average=average)


if __name__ == "__main__":
    train(mine.options())
