"""Two threads beside training, each with a process group of its own: a mean over the ranks, and a running norm."""

from concurrent.futures import ThreadPoolExecutor

import mine
import torch
import torch.distributed as dist

import keepstep


class Averages:
    """Means over all ranks, taken in a thread."""

    def __init__(self, group, world_size):
        self.group, self.world_size = group, world_size
        self.thread = ThreadPoolExecutor(1)

    def mean(self, values):
        for _ in range(8):  # in pieces, so that there is always something under way
            dist.all_reduce(values, group=self.group)
            values /= self.world_size
        return values

    def ask(self, values):
        return self.thread.submit(self.mean, values.clone())


def build():
    model = mine.Plain()
    return keepstep.State(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3))


@keepstep.recoverable
def train(run, chosen):
    state = run.setup(build)
    model, optimizer = state.model, state.optimizer
    replica = run.ddp(model)
    groups = [Averages(dist.new_group(), run.world_size) for _ in range(2)]
    try:
        for step in run.steps(mine.Corpus(), global_batch=64, micro_batch=16, last_step=chosen.until):
            mean = groups[0].ask(torch.full((1 << 14,), float(run.rank + step.number)))
            for x, y in step:
                step.backward(mine.loss_of(replica(x), y))
            gradients = torch.cat([p.grad.flatten() for p in model.parameters()])
            norm = groups[1].ask(gradients[: 1 << 15])
            mean, norm = mean.result()[0].item(), norm.result().norm().item()
            step.commit(optimizer.step)
            step.log(loss=step.loss, mean=mean, norm=norm)
    finally:
        for group in groups:
            group.thread.shutdown()
    mine.leave(chosen.out, run.rank, model=model.state_dict(), optimizer=optimizer.state_dict())


if __name__ == "__main__":
    train(mine.options())
