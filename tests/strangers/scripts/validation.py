"""Validates every few steps on all ranks together: eval, all_reduce, train."""

import mine
import torch
import torch.distributed as dist

import keepstep


def build():
    model = mine.Net()
    return keepstep.State(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3)).with_unprotected(
        batches=mine.held_out()
    )


def validate(model, batches, rank, world_size):
    model.eval()
    total = torch.zeros(2)
    with torch.no_grad():
        for number, (x, y) in enumerate(batches):
            if number % world_size == rank:
                total += torch.stack([mine.loss_of(model(x), y), torch.tensor(1.0)])
    dist.all_reduce(total)
    model.train()
    return (total[0] / total[1]).item()


@keepstep.recoverable
def train(run, chosen):
    state = run.setup(build)
    model, optimizer, batches = state.model, state.optimizer, state.batches
    replica = run.ddp(model)

    def validation(step):
        step.log(validation=validate(model, batches, run.rank, run.world_size))

    if not chosen.as_first_written:
        run.evaluate(validation, every_steps=3)  # done again where it was interrupted
    for step in run.steps(mine.Corpus(), global_batch=64, micro_batch=16, last_step=chosen.until):
        for x, y in step:
            step.backward(mine.loss_of(replica(x), y))
        step.commit(optimizer.step)
        step.log(loss=step.loss)
        if chosen.as_first_written and step.number % 3 == 0:
            validation(step)
    mine.leave(chosen.out, run.rank, model=model.state_dict(), optimizer=optimizer.state_dict())


if __name__ == "__main__":
    train(mine.options())
