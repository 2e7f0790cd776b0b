"""A small training job in which one rank hangs once, or takes its time.

Like small.py it appends JSON lines to OUT/PID.jsonl, and logs what the tests compare. `--hang HOW:RANK:STEP:PLACE`
comes true once in the whole job; `--take WHO:STEP:SECONDS` makes ranks slow: `all`, `marked` (rank 0 alone, inside
run.slow), `once` (one rank, inside run.once) or `first` (rank 0 alone, in the job's first step). `--sections N`: every
N steps there is a section ten times as long as a step, in turns one of all ranks and one of rank 0, marked.
"""

import argparse
import ctypes
import hashlib
import json
import os
import signal
import struct
import threading
import time

import torch

import keepstep

STEP_S = 0.05  # what a micro-batch pretends to take

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--until", type=int, default=20)
parser.add_argument("--hang", default="")
parser.add_argument("--take", default="")
parser.add_argument("--sections", type=int, default=0)
args = parser.parse_args()

log = open(os.path.join(args.out, f"{os.getpid()}.jsonl"), "a", buffering=1)
step_now = 0
rank_now = 0


def note(**values):
    log.write(json.dumps(values) + "\n")


def stop():
    os.kill(os.getpid(), signal.SIGSTOP)


def loop():
    while True:
        pass


def gil():
    ctypes.PyDLL(None).sleep(3600)  # PyDLL keeps the GIL


def locks():
    first, second = threading.Lock(), threading.Lock()
    first.acquire()

    def other():
        with second:
            both.set()
            first.acquire()

    both = threading.Event()
    threading.Thread(target=other, daemon=True).start()
    both.wait()
    second.acquire()


def hang_at(place):
    if not args.hang:
        return
    how, rank, step, where = args.hang.split(":")
    if where != place or int(rank) != rank_now or int(step) != step_now:
        return
    try:
        os.close(os.open(os.path.join(args.out, "hung"), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    note(hangs=how, rank=rank_now, step=step_now, mono=time.monotonic(), pid=os.getpid())
    {"stop": stop, "loop": loop, "gil": gil, "locks": locks}[how]()


def take_time(run):
    if not args.take:
        return
    who, step, seconds = args.take.split(":")
    if int(step) != step_now or (who not in ("all", "once") and rank_now != 0):
        return
    if who == "marked":
        with run.slow("evaluation"):
            time.sleep(float(seconds))
    elif who == "once":
        run.once("checkpoint", time.sleep, float(seconds))
    else:
        time.sleep(float(seconds))


def take_sections(run):
    if not args.sections or step_now % args.sections:
        return
    if step_now // args.sections % 2:
        time.sleep(10 * STEP_S)
    elif rank_now == 0:
        with run.slow("evaluation"):
            time.sleep(10 * STEP_S)


class Noise(torch.utils.data.Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        hang_at("loader")
        generator = torch.Generator().manual_seed(index)
        return torch.randn(16, generator=generator), torch.randn(4, generator=generator)


def digest(tensors):
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(bytes(tensor.detach().contiguous().flatten().view(torch.uint8).tolist()))
    return total.hexdigest()


def build():
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4))
    return keepstep.State(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2))


@keepstep.recoverable
def train(run):
    global step_now, rank_now
    state = run.setup(build)
    model, optimizer = state.model, state.optimizer
    replica = run.ddp(model)
    rank_now = run.rank
    if not run.rehearsing:
        note(entry=run.entry, rank=run.rank, generation=run.generation, version=run.version, pid=os.getpid())
    loss_function = torch.nn.MSELoss()

    def update():
        hang_at("update")
        optimizer.step()

    for step in run.steps(Noise(), global_batch=16, micro_batch=2, last_step=args.until):
        step_now = step.number
        take_time(run)
        take_sections(run)
        for x, y in step:
            time.sleep(STEP_S / 4)
            loss = loss_function(replica(x), y)
            hang_at("forward")
            step.backward(loss)
        hang_at("before_vote")
        step.log(**{f"ids_{run.rank}": step.sample_ids})
        step.commit(update)
        bits = struct.pack("<d", step.loss).hex()
        step.log(bits=bits)
    tensors = [
        *model.parameters(),
        *(optimizer.state[p][key] for p in model.parameters() for key in ("exp_avg", "step")),
    ]
    note(final=digest(tensors), buffers="", rank=run.rank, lr=0, scale=0)


train()
