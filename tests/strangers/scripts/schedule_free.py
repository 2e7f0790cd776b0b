"""Trains with a schedule-free optimizer (the package schedulefree), whose eval() swaps the weights."""

import mine
import schedulefree
import torch

import keepstep


def build():
    model = mine.Plain()
    optimizer = schedulefree.AdamWScheduleFree(model.parameters(), lr=1e-3, warmup_steps=4)
    optimizer.train()
    return keepstep.State(model=model, optimizer=optimizer).with_unprotected(batches=mine.held_out())


@torch.no_grad()
def evaluate(model, batches):
    return sum(mine.loss_of(model(x), y).item() for x, y in batches)


@keepstep.recoverable
def train(run, chosen):
    state = run.setup(build)
    model, optimizer, batches = state.model, state.optimizer, state.batches
    replica = run.ddp(model)

    def validation(step):
        with run.restored():
            optimizer.eval()
            step.log(validation=evaluate(model, batches))
            optimizer.train()

    if not chosen.as_first_written:
        run.evaluate(validation, every_steps=3)
    for step in run.steps(mine.Corpus(), global_batch=64, micro_batch=16, last_step=chosen.until):
        for x, y in step:
            step.backward(mine.loss_of(replica(x), y))
        step.commit(optimizer.step)
        step.log(loss=step.loss)
        if chosen.as_first_written and step.number % 3 == 0:
            optimizer.eval()
            step.log(validation=evaluate(model, batches))
            optimizer.train()
    mine.leave(chosen.out, run.rank, model=model.state_dict(), optimizer=optimizer.state_dict())


if __name__ == "__main__":
    train(mine.options())
