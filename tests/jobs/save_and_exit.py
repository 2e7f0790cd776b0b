"""A training script without a recoverable function, in the save-and-exit style: it asks before each step whether the
world changes, saves, and exits with 0; it is started again and loads what it saved.

Each process appends JSON lines to OUT/PID.jsonl. It ends for good once OUT/enough exists.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import keepstep

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--backend", default="gloo", help="none: without a process group")
parser.add_argument("--deaf", action="store_true", help="never asks")
parser.add_argument("--exit-code", type=int, default=0, help="of the first rank that leaves for a change")
args = parser.parse_args()

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
log = open(args.out / f"{os.getpid()}.jsonl", "a", buffering=1)


def note(**values):
    log.write(json.dumps(values) + "\n")


if args.backend != "none":
    dist.init_process_group(args.backend)
saved = args.out / "saved.json"
step = json.loads(saved.read_text())["step"] if saved.exists() else 0
begin = step
restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
note(begins=step, rank=rank, world=world, pid=os.getpid(), restarts=restarts, at=time.monotonic())


def agreed(value):
    if args.backend == "none":
        return value
    flag = torch.tensor([int(value)])
    dist.broadcast(flag, 0)
    return bool(flag.item())


while True:
    if agreed((args.out / "enough").exists()):
        note(ends=step, rank=rank, world=world)
        break
    if not args.deaf and keepstep.elastic_event_detected():
        assert keepstep.elastic_event_detected(), "it stays so"
        note(leaves=step, rank=rank, world=world)
        if rank == 0:
            partial = args.out / "saved.partial"
            partial.write_text(json.dumps({"step": step}))
            partial.replace(saved)
        if args.backend != "none":
            dist.barrier()
        if rank == 0 and args.exit_code and begin == 0:
            sys.exit(args.exit_code)
        break
    step += 1
    note(step=step, rank=rank, world=world)
    time.sleep(0.02)
if args.backend != "none":
    dist.destroy_process_group()
