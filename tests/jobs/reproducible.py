"""The GPT of examples/gpt, in reproducible mode unless told otherwise.

Notes the bits of every loss and gradient norm, and of the final parameters.
Each process appends JSON lines to OUT/PID.jsonl, as tests/jobs/small.py does.
"""

import argparse
import hashlib
import json
import os
import struct
import sys
import time
from pathlib import Path

import torch

import keepstep

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "gpt"))
from model import GPT, GPTConfig, next_byte_loss
from text import Text

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--until", type=int, default=6)
parser.add_argument("--micro-batches", type=int, default=12)
parser.add_argument(
    "--tokens", action="store_true", help="divide by tokens, of which micro-batches have different numbers"
)
parser.add_argument("--wrapper", choices=["reproducible", "ddp", "replicate"], default="reproducible")
parser.add_argument("--dropout", type=float, default=0.1)
parser.add_argument("--note-ids", action="store_true", help="write down the samples of each attempt at a step")
parser.add_argument("--sleep", type=float, default=0.0, help="seconds, after each step")
parser.add_argument("--hang-at-change", type=int, metavar="RANK", help="once, when all are about to pause")
parser.add_argument("--norm", choices=["batch"], help="a model that cannot be reproducible")
args = parser.parse_args()

# Of one node alone, whose workers get ready only once this file is there.
GATE = os.environ.get("KEEPSTEP_TEST_GATE")

log = open(os.path.join(args.out, f"{os.getpid()}.jsonl"), "a", buffering=1)


def note(**values):
    log.write(json.dumps(values) + "\n")


def bits(value):
    return struct.pack("<d", float(value)).hex()


def build():
    while GATE and not os.path.exists(GATE):
        time.sleep(0.01)
    model = GPT(GPTConfig(layers=2, width=32, heads=2, context=24, dropout=args.dropout))
    if args.norm:
        model.norm = torch.nn.Sequential(torch.nn.BatchNorm1d(24), model.norm)
    state = keepstep.State(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=3e-3))
    return state.with_unprotected(text=Text(24, 1 << 18))


def wrap(run, model):
    if args.wrapper == "reproducible":
        return run.ddp(model, reproducible=True, bucket_cap_mb=0.02)
    if args.wrapper == "ddp":
        return run.ddp(model)
    torch.distributed.init_process_group("keepstep")
    return keepstep.torch.Replicate(model, bucket_cap_mb=0.02)


def hang_once():
    try:
        os.close(os.open(os.path.join(args.out, "hung"), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    while True:
        pass


def note_resize(before, now):
    note(resized=[before, now], pid=os.getpid())


@keepstep.recoverable
def train(run):
    state = run.setup(build)
    model, optimizer, text = state.model, state.optimizer, state.text
    replica = wrap(run, model)
    run.on("resize", note_resize)
    if not run.rehearsing:
        note(entry=run.entry, rank=run.rank, generation=run.generation, pid=os.getpid())
    samples = 3
    for step in run.steps(text, global_batch=samples * args.micro_batches, micro_batch=samples, last_step=args.until):
        for tokens, targets in step:
            if args.tokens:
                count = 24 * samples - int(tokens[0, 0]) % 17  # some are masked
                loss = torch.nn.functional.cross_entropy(
                    replica(tokens).flatten(0, 1)[:count], targets.flatten()[:count], reduction="sum"
                )
                step.backward(loss, count=count)
            else:
                step.backward(next_byte_loss(replica(tokens), targets))
        norm = keepstep.torch.clip_grad_norm_(model.parameters(), 0.5)
        step.log(**{f"ids_{run.rank}": step.sample_ids})
        if args.note_ids:
            note(step=step.number, generation=run.generation, rank=run.rank, ids=step.sample_ids)
        step.commit(optimizer.step)
        step.log(bits=bits(step.loss), norm=bits(norm), world=run.world_size)
        if run.rank == args.hang_at_change and keepstep.elastic_event_detected():
            hang_once()
        time.sleep(args.sleep)
    digest = hashlib.sha256()
    for tensor in [*model.parameters(), *(v for s in optimizer.state.values() for v in s.values())]:
        digest.update(bytes(tensor.detach().contiguous().flatten().view(torch.uint8).tolist()))
    note(final=digest.hexdigest(), rank=run.rank, buffers="", lr=[], scale=1)


train()
