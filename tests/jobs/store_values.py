"""Puts values of several sizes into c10d's store on one rank and reads them on all others."""

import argparse
import hashlib
import json
import os

import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
args = parser.parse_args()

SIZES = [0, 1, 48 << 10, (48 << 10) + 1, 100_000, 3_000_000, 8 << 20]

dist.init_process_group("gloo")
store = dist.distributed_c10d._get_default_store()
rank, world = dist.get_rank(), dist.get_world_size()


def value(size, by):
    return (hashlib.sha256(f"{size} {by}".encode()).digest() * (size // 32 + 1))[:size]


for size in SIZES:
    for by in range(world):
        if rank == by:
            store.set(f"value-{size}-{by}", value(size, by))
    for by in range(world):
        assert store.get(f"value-{size}-{by}") == value(size, by), (rank, size, by)
try:
    store.set("too large", bytes((8 << 20) + 1))
    refused = ""
except (RuntimeError, ValueError) as error:
    refused = str(error)
with open(os.path.join(args.out, f"{os.getpid()}.jsonl"), "a") as log:
    log.write(json.dumps({"rank": rank, "refused": refused}) + "\n")
dist.barrier()
