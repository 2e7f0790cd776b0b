"""Training functions that are left in the middle of something: validation, averaged weights, frozen parameters.

Rank 1 ends itself by SIGKILL once in the job, at the place that --case names, while rank 0 is in the same place or
waits there for it. Notes as those of small.py.
"""

import argparse
import glob
import hashlib
import json
import os
import signal
import struct
import time

import torch
import torch.distributed as dist

import keepstep

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--case", required=True)
parser.add_argument("--until", type=int, default=6)
parser.add_argument("--kill-at", type=int, default=0, help="at this step; 0: nobody dies")
parser.add_argument("--all", action="store_true", help="rank 0 ends both ranks")
parser.add_argument("--memory", action="store_true", help="copies in memory of every step")
parser.add_argument("--every", type=int, default=0, help="checkpoints, so many steps apart")
parser.add_argument("--rate", type=float, default=0.0, help="set by each entry before its loop, with BatchNorm frozen")
args = parser.parse_args()

log = open(os.path.join(args.out, f"{os.getpid()}.jsonl"), "a", buffering=1)


def note(**values):
    log.write(json.dumps(values) + "\n")


class Noise(torch.utils.data.Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(8, generator=generator), torch.randn(2, generator=generator)


HELD_OUT = [torch.randn(16, 8, generator=torch.Generator().manual_seed(10_000 + i)) for i in range(4)]


class Counting(torch.nn.Linear):
    """Counts its forward passes in what get_extra_state returns; what it computes depends on it."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * (1 + self.calls / 64)

    def get_extra_state(self):
        return {"calls": self.calls, "shape": (8, 16), "last": torch.tensor([self.calls, -1])}

    def set_extra_state(self, state):
        assert state["shape"] == (8, 16) and state["last"].tolist() == [state["calls"], -1], state
        self.calls = state["calls"]


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        first = Counting(8, 16) if "extra" in args.case else torch.nn.Linear(8, 16)
        self.blocks = torch.nn.Sequential(first, torch.nn.Dropout(0.25), torch.nn.Tanh())
        # What both forward and the update change, as a closure's forward would, cannot be carried.
        self.norm = torch.nn.Identity() if args.case.startswith(("lbfgs", "late-teacher")) else torch.nn.BatchNorm1d(16)
        self.head = torch.nn.Linear(16, 2)
        if args.case == "assigned":
            self.register_buffer("trend", torch.zeros(()))

    def forward(self, x):
        return self.head(self.norm(self.blocks(x)))


class ScheduleFree(torch.optim.Optimizer):
    """SGD that keeps a point z beside the averaged x, as schedulefree.SGDScheduleFree does: parameters hold y in
    training and x in evaluation, and each switch rounds."""

    def __init__(self, params, lr=0.05, beta=0.9):
        super().__init__(params, {"lr": lr, "beta": beta, "k": 0, "train_mode": True})

    def _to(self, train, weight):
        for group in self.param_groups:
            if group["train_mode"] != train:
                for parameter in group["params"]:
                    if "z" in self.state[parameter]:
                        parameter.data.lerp_(self.state[parameter]["z"], weight(group["beta"]))
                group["train_mode"] = train

    def eval(self):
        self._to(False, lambda beta: 1 - 1 / beta)

    def train(self):
        self._to(True, lambda beta: 1 - beta)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            assert group["train_mode"]
            group["k"] += 1
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                z = self.state[parameter].setdefault("z", parameter.clone())
                share = 1 / group["k"]
                parameter.lerp_(z, share)
                parameter.add_(parameter.grad, alpha=group["lr"] * (group["beta"] * (1 - share) - 1))
                z.sub_(parameter.grad, alpha=group["lr"])


def build():
    model = Model()
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5))
    critic = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    if args.case.startswith("schedule-free"):
        optimizer = ScheduleFree(model.parameters())
    elif args.case.startswith("lbfgs"):
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2, history_size=2)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return keepstep.State(
        model=model,
        average=average,
        critic=critic,
        optimizer=optimizer,
        critic_optimizer=torch.optim.AdamW(critic.parameters(), lr=1e-2),
    )


def first_time(name):
    """Whether no process of this job asked before."""
    try:
        os.close(os.open(os.path.join(args.out, name), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def maybe_die(run, number):
    if args.kill_at != number or not (args.all or run.rank == 1):
        return
    if not first_time(f"died{run.rank if args.all else ''}"):
        return
    note(dies=run.rank, step=number)
    if args.all:
        while not glob.glob(os.path.join(args.out, "saved", "step-*", ".metadata")):
            time.sleep(0.1)
        time.sleep(0.5)  # the coordinator hears of it
        other = os.path.join(args.out, "pid1")
        if run.rank == 1:
            os.symlink(str(os.getpid()), other)
            signal.pause()
        while not os.path.islink(other):
            os.sched_yield()
        os.kill(int(os.readlink(other)), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for_interruption():
    """Until the survivors' agent sealed the generation: from here on an early exit would be due."""
    from keepstep._session import session_or_none

    while not session_or_none().engine.interrupted():
        os.sched_yield()


def validate(run, model, number):
    """Collectives, and forward passes of whatever mode the model is in."""
    total = torch.zeros(1)
    for index, batch in enumerate(HELD_OUT):
        if index == 2:
            maybe_die(run, number)
        with torch.no_grad():
            total += model(batch).square().mean()
        dist.all_reduce(total)
    return float(total)


def swap(model, average, how):
    """Averaged weights into the model; returns what swaps them back."""
    pairs = list(zip(model.parameters(), average.module.parameters(), strict=True))
    saved = [parameter.detach().clone() for parameter, _ in pairs]
    held = [parameter.data for parameter, _ in pairs]

    def back():
        for (parameter, _), old, values in zip(pairs, held, saved, strict=True):
            if how == "pointer":
                parameter.data = old
            else:
                (parameter.data if how == "data" else parameter.detach()).copy_(values)

    for parameter, averaged in pairs:
        if how == "pointer":
            parameter.data = averaged.data
        elif how == "data":
            parameter.data.copy_(averaged.data)
        else:
            with torch.no_grad():
                parameter.copy_(averaged)
    return back


def digest(tensors):
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(bytes(tensor.detach().contiguous().flatten().view(torch.uint8).tolist()))
    return total.hexdigest()


def evaluate(run, model, average, optimizer, number):
    kind, _, how = args.case.partition(":")
    bare = kind.endswith("-bare")
    kind = kind.removesuffix("-bare")
    if kind == "raises":
        raise ValueError(f"validation of step {number} does not work")
    elif kind in ("eval", "assigned"):
        model.eval()
        note(validation=validate(run, model, number), step=number, rank=run.rank)
        model.train()
    elif kind == "average" and bare:
        back = swap(model, average, how)
        note(validation=validate(run, model, number), step=number, rank=run.rank)
        back()
    elif kind == "average":
        with run.restored():
            swap(model, average, how)
            model.eval()
            note(validation=validate(run, model, number), step=number, rank=run.rank)
    elif kind == "schedule-free" and bare:
        optimizer.eval()
        note(validation=validate(run, model, number), step=number, rank=run.rank)
        optimizer.train()
    elif kind == "schedule-free":
        with run.restored():
            optimizer.eval()
            note(validation=validate(run, model, number), step=number, rank=run.rank)
    elif kind in ("one-changed", "all-changed"):
        changes = number == args.kill_at and (kind == "all-changed" or run.rank == 0)
        while args.memory and changes and run.shard_counts().versions <= number:
            os.sched_yield()  # the copy of this step is made beside us, and of the start
        if changes and first_time(f"changed{run.rank}"):
            model.head.bias.data.mul_(2)
        dist.all_reduce(torch.zeros(1))
        maybe_die(run, number)
        dist.all_reduce(torch.zeros(1))
    elif kind == "late-option":
        optimizer.param_groups[0]["lr"] *= 0.5
    elif kind == "late-frozen":
        model.head.bias.requires_grad_(False)
    elif kind == "late-mode":
        model.eval()
    elif kind in ("average-eval", "late-teacher"):
        average.eval()
        note(validation=validate(run, average, number), step=number, rank=run.rank)
    elif kind == "extra-restored":
        with run.restored():
            note(validation=validate(run, model, number), step=number, rank=run.rank)
    elif kind == "late-extra":
        model.eval()
        model(HELD_OUT[0])
        model.train()
    elif kind == "last" and number == args.until:
        model.head.bias.data.mul_(2)
    elif kind == "late-state" and number == 4:  # the first three steps are checked anyway
        optimizer.state.clear()
    elif kind in ("late-statistics", "hidden-statistics"):
        with torch.no_grad():
            model(HELD_OUT[0])
        if kind == "hidden-statistics":
            with run.restored():
                model.eval()
    elif kind == "head" and number == 4:  # of one tensor, where no forward looks
        with torch.no_grad():
            model.head.bias.mul_(1.5)


@keepstep.recoverable(rehearse=False)
def train(run):
    state = run.setup(build)
    model, average, critic, optimizer, critic_optimizer = (
        state.model,
        state.average,
        state.critic,
        state.optimizer,
        state.critic_optimizer,
    )
    if args.memory or args.every:
        memory = 1 if args.memory else None
        run.checkpoint(
            keepstep.Destination(os.path.join(args.out, "saved"), every_steps=args.every or 1000),
            memory_every_steps=memory,
        )
    if args.case == "frozen":
        model.blocks.requires_grad_(False)
        model.norm.eval()
    replica = run.ddp(model)
    judge = run.ddp(critic)
    note(entry=run.entry, rank=run.rank, generation=run.generation, version=run.version, pid=os.getpid())
    if args.case == "extra-entry":
        model.blocks[0](HELD_OUT[0])
    elif args.case == "entry-statistics":
        model(HELD_OUT[0])
        with run.restored():
            model.eval()
    elif args.case == "entry-option":
        optimizer.param_groups[0]["lr"] *= 0.5
    elif args.case == "entry-mode":
        model.blocks.eval()
    elif args.rate:
        optimizer.param_groups[0]["lr"] = args.rate
        model.norm.eval()
    elif args.case == "entry-pointer":
        model.head.weight.data = torch.full_like(model.head.weight, 0.1)
    elif args.case == "entry-element":
        with torch.no_grad():
            model.head.weight[0, 0] = 0.1
    if args.case.startswith("registered"):

        def registered(step):
            model.eval()
            value = validate(run, model, step.number)
            note(validation=value, step=step.number, rank=run.rank)
            step.log(validation=value)
            if args.case == "registered-raises":
                raise ValueError(f"validation of step {step.number} does not work")

        run.evaluate(registered, every_steps=2)
    loss_function = torch.nn.MSELoss()
    for step in run.steps(Noise(), global_batch=8, micro_batch=2, last_step=args.until):
        if args.case == "entry-mode" and step.number == 2:
            model.blocks.train()
        for x, y in step:
            if args.case == "gan":
                for parameter in critic.parameters():
                    parameter.requires_grad_(True)
                (judge(y) - judge(replica(x).detach())).mean().backward()
                critic.requires_grad_(False)
                maybe_die(run, step.number)
                step.backward(loss_function(replica(x), y) + judge(replica(x)).mean() / 8)
            else:
                if args.case in ("extra", "extra-entry") or args.case.startswith("entry"):
                    maybe_die(run, step.number)
                if args.case == "late-teacher":
                    with torch.no_grad():
                        y = average.module(x)
                step.backward(loss_function(replica(x), y))
        if args.case.startswith("update"):
            parts = [optimizer.step, lambda: average.update_parameters(model)]

            def forward(number=step.number):
                if args.kill_at == number and first_time(f"met{run.rank}"):
                    maybe_die(run, number)
                    wait_for_interruption()
                torch.manual_seed(number)  # dropout: the same on all ranks, as an update has to be
                with run.restored() if args.case == "update-restored" else torch.no_grad(), torch.no_grad():
                    torch.optim.swa_utils.update_bn(HELD_OUT, average)

            parts.append(forward)
            step.commit(*parts, communicates=args.case == "update-communicates")
        elif args.case.startswith("lbfgs"):

            def closure(step=step):
                if args.kill_at == step.number:
                    maybe_die(run, step.number)
                optimizer.zero_grad()
                loss = loss_function(replica(HELD_OUT[0][:, :8]), HELD_OUT[1][:, :2])
                loss.backward()
                return loss

            step.commit(lambda: optimizer.step(closure), communicates=args.case == "lbfgs-communicates")
        elif args.case == "gan":
            step.commit(optimizer.step, critic_optimizer.step)
        elif args.case == "assigned":

            def assign():
                model.trend = 0.9 * model.trend + model.head.weight.detach().norm()

            step.commit(optimizer.step, assign)
        elif args.case == "late-optimizer":
            if step.number == 3:
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            step.commit(optimizer.step)
        else:
            step.commit(optimizer.step, lambda: average.update_parameters(model))
        bits = struct.pack("<d", step.loss).hex()
        step.log(bits=bits)
        note(step=step.number, rank=run.rank, generation=run.generation, bits=bits)
        if step.number % 2 == 0:
            evaluate(run, model, average, optimizer, step.number)
    tensors = [*model.parameters(), *average.parameters(), *critic.parameters()]
    for parameter in model.parameters():
        state = optimizer.state.get(parameter, {})
        tensors += [state[key] for key in sorted(state) if isinstance(state[key], torch.Tensor)]
    note(final=digest(tensors), buffers=digest(model.buffers()), rank=run.rank, lr=0, scale=0,
         calls=getattr(model.blocks[0], "calls", 0))  # fmt: skip


train()
