"""A loader behind `keepstep.data.cached`: under `keepstep run` a small training job, elsewhere a plain loop.

Sample i is the number i and a row whose width and values follow from i; a batch has a random number, too. What each
committed step used is logged (``ids_RANK``, ``noise_RANK``); every batch is compared with what it must be.
--kill-loading kills the process that loads while it loads a batch, --kill-loader from the outside at the beginning of a
step.
"""

import argparse
import hashlib
import json
import os
import signal
import time

import torch

import keepstep
from keepstep.data import cached

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--until", type=int, default=12)
parser.add_argument("--samples", type=int, default=40)
parser.add_argument("--micro-batches", type=int, default=4)
parser.add_argument("--kill-loading", type=int, nargs="*", default=[], help="samples; each once")
parser.add_argument("--kill-loader", type=int, nargs="*", default=[], help="steps; each once")
parser.add_argument("--raise-at", type=int, default=-1, help="the loader raises at this sample")
parser.add_argument("--limit-bytes", type=int)
parser.add_argument("--ahead", type=int, default=3)
parser.add_argument("--behind", type=int, default=1)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--generator", action="store_true", help="a loader without a length, which ends for good")
parser.add_argument("--stateful", action="store_true", help="a loader that is resumed by its state")
parser.add_argument("--torchdata", action="store_true", help="torchdata's StatefulDataLoader")
parser.add_argument("--dies", action="store_true", help="the loader dies whenever it is started")
parser.add_argument("--epochs", type=int, default=2, help="of a plain loop")
parser.add_argument("--save-every", type=int, default=0, help="rounds of a plain loop between two checkpoints")
parser.add_argument("--kill-rank", type=int, nargs="*", default=[], help="positions of a plain loop; each once")
parser.add_argument("--plain", action="store_true", help="a plain loop, for ranks of torchrun")
parser.add_argument("--spoil", action="store_true", help="ranks write into their batches")
args = parser.parse_args()
MICRO_BATCH = 2


def first_time(what):
    try:
        os.close(os.open(os.path.join(args.out, f"once-{what}"), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def width(sample):
    return 1 + sample * 37 % 500


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return args.samples

    def __getitem__(self, sample):
        if args.dies:
            die()
        os.write(read, f"{sample}\n".encode())
        if sample in args.kill_loading and first_time(f"loading-{sample}"):
            die()
        if sample == args.raise_at:
            raise ValueError(f"sample {sample} is broken")
        return sample, torch.full((width(sample),), sample, dtype=torch.float32)


def collate(samples):
    return {
        "ids": torch.tensor([sample for sample, _ in samples]),
        "rows": [row for _, row in samples],
        "noise": torch.rand(()),
        "facts": (os.getpid(), "text", None, {"nested": [1.5, True]}),
    }


class Stateful:
    """Counts what it yielded, goes on there if it is told to, and dies once in the middle."""

    batch_size = MICRO_BATCH

    def __init__(self, loader):
        self.loader = loader
        self.given = None

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        start, self.given = self.given or 0, None
        self.done = start
        with open(os.path.join(args.out, "begun.txt"), "a") as file:
            file.write(f"{start}\n")
        for batch in list(self.loader)[start:]:
            if self.done == 7 and first_time("state"):
                die()
            self.done += 1
            yield batch

    def state_dict(self):
        return {"done": self.done}

    def load_state_dict(self, state):
        self.given = state["done"]


class Endless:
    def __init__(self, loader):
        self.left = iter([batch for _ in range(2) for batch in loader])

    def __iter__(self):
        return self.left


def make_loader():
    kind = torch.utils.data.DataLoader
    if args.torchdata:
        from torchdata.stateful_dataloader import StatefulDataLoader as kind  # not a part of every environment
    loader = kind(Samples(), batch_size=MICRO_BATCH, shuffle=True, collate_fn=collate, num_workers=args.workers)
    if args.generator:
        loader = Endless(loader)
    if args.stateful:
        loader = Stateful(loader)
    return cached(loader, ahead=args.ahead, behind=args.behind, limit_bytes=args.limit_bytes)


def check(batch):
    """Nobody else may have written into it, and nobody has."""
    for sample, row in zip(batch["ids"].tolist(), batch["rows"], strict=True):
        assert row.shape == (width(sample),) and bool((row == sample).all()), (sample, row)
    assert batch["facts"][1:] == ("text", None, {"nested": [1.5, True]})


# Each sample that is read, in the order of reading; processes append at once.
read = os.open(os.path.join(args.out, "read.txt"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
log = open(os.path.join(args.out, f"{os.getpid()}.jsonl"), "a", buffering=1)


def note(**values):
    log.write(json.dumps(values) + "\n")


def kill_loader(batch, step):
    """Ends the process that loaded `batch`, if it lives still."""
    if step in args.kill_loader and first_time(f"loader-{step}"):
        pid = batch["facts"][0]
        try:
            with open(f"/proc/{pid}/comm") as file:
                if file.read().strip() == "keepstep-loader":
                    os.kill(pid, signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            pass  # another fault was quicker


def build():
    model = torch.nn.Linear(4, 1)
    return keepstep.State(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1e-3))


@keepstep.recoverable
def train(run):
    state = run.setup(build)
    model, optimizer = state.model, state.optimizer
    replica = run.ddp(model)
    data = make_loader()
    kept = []
    for step in run.steps(
        data, global_batch=args.micro_batches * MICRO_BATCH, micro_batch=MICRO_BATCH, last_step=args.until
    ):
        ids, noise = [], []
        begun = time.perf_counter()
        first_s = None
        for batch in step:
            first_s = time.perf_counter() - begun if first_s is None else first_s
            check(batch)
            ids += batch["ids"].tolist()
            noise.append(batch["noise"].item())
            kill_loader(batch, step.number)
            kept.append(batch)
            step.backward(replica(torch.stack([row[:1].expand(4) for row in batch["rows"]])).sum() * 1e-3)
            if args.spoil:
                for row in batch["rows"]:
                    row.fill_(-1)
                batch["ids"] = batch["ids"].clone()
        step.log(**{f"ids_{run.rank}": ids, f"noise_{run.rank}": noise})
        note(step=step.number, rank=run.rank, ids=ids)  # of every try; what is logged may be lost with its node
        step.commit(optimizer.step)
        if not args.spoil:
            for batch in kept:
                check(batch)  # long after the ring gave it up
        note(step=step.number, rank=run.rank, first_s=first_s, entry=run.entry, generation=run.generation,
             pid=os.getpid(), waits=data.waits)  # fmt: skip
    total = hashlib.sha256()
    for parameter in model.parameters():
        total.update(bytes(parameter.detach().flatten().view(torch.uint8).tolist()))
    note(final=total.hexdigest(), rank=run.rank, waits=data.waits, pid=os.getpid())


def plain():
    """The loop of a script that knows nothing of keepstep but its loader; restarted from its checkpoint."""
    data = make_loader()
    rank = int(os.environ.get("RANK", "0"))
    together = "MASTER_ADDR" in os.environ  # under torchrun ranks go in step, as those that train together do
    if together:
        torch.distributed.init_process_group("gloo")
    saved = os.path.join(args.out, "checkpoint.pt")
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")

    def save():
        if rank == 0:
            torch.save(data.state_dict(), saved + ".part")
            os.replace(saved + ".part", saved)

    if os.path.exists(saved):
        data.load_state_dict(torch.load(saved, weights_only=True))
    note(rank=rank, start=start, begins=data.position)
    while data.position < args.epochs * (args.samples // MICRO_BATCH):
        for number, batch in enumerate(data):
            check(batch)
            kill_loader(batch, data.position)
            ids = batch["ids"].tolist()
            note(rank=rank, start=start, position=data.position, number=number, ids=ids, left=len(data),
                 pids=[os.getpid(), batch["facts"][0]])  # fmt: skip
            if together and data.position in args.kill_rank:
                torch.distributed.barrier()  # all have noted it
            if rank == 1 and data.position in args.kill_rank and first_time(f"rank-{data.position}"):
                die()
            if args.save_every and (number + 1) % args.save_every == 0:
                save()
            if together:
                torch.distributed.barrier()
        note(rank=rank, epoch_ended=data.position)
        if data.position >= args.samples // MICRO_BATCH and not os.path.exists(saved):
            save()
    note(rank=rank, done=data.position)
    if together:
        torch.distributed.destroy_process_group()


if args.plain:
    plain()
else:
    train()
