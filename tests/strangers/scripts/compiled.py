"""A compiled model: compiled once per process, inside of what DDP wraps."""

import mine
import torch

import keepstep


def build():
    model = mine.Plain(width=256)
    model.compile()
    return keepstep.State(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3))


@keepstep.recoverable
def train(run, chosen):
    state = run.setup(build)
    model, optimizer = state.model, state.optimizer
    replica = run.ddp(model)
    for step in run.steps(mine.Corpus(), global_batch=64, micro_batch=16, last_step=chosen.until):
        for x, y in step:
            step.backward(mine.loss_of(replica(x), y))
        step.commit(optimizer.step)
        step.log(loss=step.loss)
    mine.leave(chosen.out, run.rank, model=model.state_dict(), optimizer=optimizer.state_dict())


if __name__ == "__main__":
    train(mine.options())
