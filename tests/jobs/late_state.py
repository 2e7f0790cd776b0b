"""Training whose state grows after it was protected, in one way by MODE; writes its bits down like small.py.

"lists": carried; others are mistakes that must be named before any fault.
"""

import argparse
import hashlib
import json
import os
import struct

import torch

import keepstep

parser = argparse.ArgumentParser()
parser.add_argument("mode")
parser.add_argument("--out", required=True)
parser.add_argument("--until", type=int, default=8)
parser.add_argument("--durable")
args = parser.parse_args()
AVERAGES = args.mode.startswith(("average", "copy"))
GROWS = args.mode in ("lists", "real-soap")
log = open(os.path.join(args.out, f"{os.getpid()}.jsonl"), "a", buffering=1)


def note(**values):
    log.write(json.dumps(values) + "\n")


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(6, generator=generator), torch.randn(2, generator=generator)


class Model(torch.nn.Module):
    """If its state grows, its first forward makes a buffer, and each later one puts another in its place."""

    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(6, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.head = torch.nn.Linear(8, 2)
        self.register_buffer("seen", None)

    def forward(self, x):
        mean = x.detach().mean(0)
        offset = 0
        if "seen" in self._buffers:
            self.seen = mean if self.seen is None else self.seen * 0.5 + mean
            offset = self.seen.sum()
        return self.head(torch.tanh(self.norm(self.body(x))) + offset)


class Soapy(torch.optim.Optimizer):
    """Keeps lists of tensors by parameter, as SOAP does: None at first, then a list with empty places."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["step"] = 0
                    state["GG"] = [torch.zeros(n, n) if n > 2 else [] for n in parameter.shape]
                    state["Q"] = None
                state["step"] += 1
                update = parameter.grad
                for number, matrix in enumerate(state["GG"]):
                    if len(matrix):
                        flat = (
                            parameter.grad.movedim(number, 0).flatten(1)
                            if parameter.dim() > 1
                            else parameter.grad[:, None]
                        )
                        matrix.lerp_(flat @ flat.T, 0.1)
                        update = update + torch.tensordot(matrix, update, dims=([0], [number])).movedim(0, number)
                state["Q"] = [None if len(matrix) == 0 else matrix * 2 for matrix in state["GG"]]
                parameter.sub_(update, alpha=group["lr"])


class Callback:
    """Empty when it is registered."""

    def __init__(self):
        self.best = None
        self.history = []
        self.of_step = {}

    def state_dict(self):
        return {"best": self.best, "history": self.history, "of_step": self.of_step}

    def load_state_dict(self, state):
        self.best, self.history, self.of_step = state["best"], state["history"], state["of_step"]

    def update(self, number, model):
        norm = model.head.weight.detach().norm()
        self.best = norm.clone() if self.best is None else torch.minimum(self.best, norm)
        self.history.append(norm)
        self.of_step[number] = {"norm": norm, "name": f"step {number}"}
        if args.mode == "set" and number == 2:
            self.of_step["seen"] = {1, 2}


def optimizer_of(model):
    if args.mode == "real-soap":
        from pytorch_optimizer import SOAP

        return SOAP(model.parameters(), lr=1e-2, precondition_frequency=3)
    if args.mode == "lists":
        return Soapy(model.parameters(), lr=1e-2)
    return torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)


def build():
    model = Model()
    notes = {"all": [], "mean": None}
    if not GROWS:
        del model._buffers["seen"]
    protected = {"model": model, "optimizer": optimizer_of(model)}
    others = {"callback": Callback(), "notes": notes}
    if GROWS or args.mode == "set":
        protected.update(others)
        others = {}
    if AVERAGES:
        ema = torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)
        in_buffers = args.mode.startswith("average")
        protected["average"] = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=ema, use_buffers=in_buffers)
    return keepstep.State(**protected).with_unprotected(**others)


def digest(value):
    total = hashlib.sha256()

    def add(value):
        if isinstance(value, torch.Tensor):
            total.update(value.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                total.update(str(key).encode())
                add(value[key])
        elif isinstance(value, (list, tuple)):
            for item in value:
                add(item)
        else:
            total.update(repr(value).encode())

    add(value)
    return total.hexdigest()


@keepstep.recoverable(rehearse=args.mode == "lists" or None)
def train(run):
    state = run.setup(build)
    model, optimizer, callback, notes = state.model, state.optimizer, state.callback, state.notes
    average = state.average if AVERAGES else None
    if args.durable:
        run.checkpoint(keepstep.Destination(args.durable, every_steps=4))
    replica = run.ddp(model)
    if not run.rehearsing:
        note(entry=run.entry, rank=run.rank, generation=run.generation, version=run.version, pid=os.getpid())
    for step in run.steps(Numbers(), global_batch=8, micro_batch=2, last_step=args.until):
        for x, y in step:
            step.backward(torch.nn.functional.mse_loss(replica(x), y))

        def update():
            optimizer.step()
            if AVERAGES:
                average.update_parameters(model)
            callback.update(step.number, model)
            notes["all"].append((step.number, model.head.bias.detach().clone()))
            notes["mean"] = model.head.bias.detach().mean()
            if step.number == 2 and args.mode == "layer":
                model.adapter = torch.nn.Linear(2, 2)
            if step.number == 2 and args.mode == "group":
                optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))]})

        if args.mode == "average-same":
            for buffer in model.buffers():
                torch.distributed.broadcast(buffer, 0)
        step.log(**{f"ids_{run.rank}": step.sample_ids})
        step.commit(update)
        step.log(bits=struct.pack("<d", step.loss).hex())
    note(
        rank=run.rank,
        final=digest([*model.parameters(), optimizer.state_dict(), *([callback.state_dict(), notes] if GROWS else [])]),
        buffers=digest([dict(model.named_buffers()), dict(average.named_buffers()) if AVERAGES else {}]),
        lr=[group["lr"] for group in optimizer.param_groups],
        scale=0,
    )


train()
