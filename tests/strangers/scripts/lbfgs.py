"""LBFGS: each update evaluates the loss of the whole batch several times, over all ranks."""

import mine
import torch
import torch.distributed as dist

import keepstep


def build():
    model = mine.Plain(width=256)
    return keepstep.State(
        model=model, optimizer=torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, history_size=5)
    )


@keepstep.recoverable
def train(run, chosen):
    state = run.setup(build)
    model, optimizer = state.model, state.optimizer
    replica = run.ddp(model)
    for step in run.steps(mine.Corpus(), global_batch=64, micro_batch=32, last_step=chosen.until):
        ((x, y),) = step
        losses = []

        def closure(x=x, y=y, losses=losses):
            optimizer.zero_grad()
            loss = mine.loss_of(replica(x), y)
            loss.backward()
            mean = loss.detach().clone()  # the same on all ranks: the optimizer decides by it
            dist.all_reduce(mean, op=dist.ReduceOp.AVG)
            losses.append(mean.item())
            return mean

        step.commit(lambda closure=closure: optimizer.step(closure), communicates=not chosen.as_first_written)
        step.log(loss=losses[0], evaluations=len(losses))
    mine.leave(chosen.out, run.rank, model=model.state_dict(), optimizer=optimizer.state_dict())


if __name__ == "__main__":
    train(mine.options())
