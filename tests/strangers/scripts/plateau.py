"""Lowers the learning rate when the validation loss stops falling: an evaluation inside of the update."""

import mine
import torch

import keepstep


def build():
    model = mine.Net(statistics=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    return keepstep.State(
        model=model, optimizer=optimizer, plateau=torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
    ).with_unprotected(batches=mine.held_out())


@torch.no_grad()
def evaluate(model, batches):
    model.eval()
    loss = sum(mine.loss_of(model(x), y).item() for x, y in batches)
    model.train()
    return loss


@keepstep.recoverable
def train(run, chosen):
    state = run.setup(build)
    model, optimizer, plateau, batches = state.model, state.optimizer, state.plateau, state.batches
    replica = run.ddp(model)
    for step in run.steps(mine.Corpus(), global_batch=64, micro_batch=16, last_step=chosen.until):
        for x, y in step:
            step.backward(mine.loss_of(replica(x), y))
        if step.number % 3 == 0:
            step.commit(optimizer.step, lambda: plateau.step(evaluate(model, batches)))
        else:
            step.commit(optimizer.step)
        step.log(loss=step.loss, learning_rate=optimizer.param_groups[0]["lr"])
    mine.leave(chosen.out, run.rank, model=model.state_dict(), optimizer=optimizer.state_dict())


if __name__ == "__main__":
    train(mine.options())
