"""Two ranks of cached_batches.py, which nothing keeps in step, and one comes late: round after round, forked from here.

The late one begins when the first has read so much, or has ended; loaders are killed meanwhile. Exits with 1 at the
first round in which a rank fails, waits for ever (then its stack is shown), or does not read its share.
"""

import argparse
import atexit
import itertools
import json
import os
import random
import runpy
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import torch  # what ranks inherit need not be imported by each of them

import keepstep.data

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--rounds", type=int, required=True)
parser.add_argument("--seed", type=int, required=True)
args = parser.parse_args()
assert torch and keepstep.data.cached
SCRIPT = Path(__file__).with_name("cached_batches.py")
SAMPLES = 42  # 21 batches an epoch: a round of two lies in both
LIMIT_S = 60


def notes(folder):
    lines = itertools.chain.from_iterable(path.read_text().splitlines(True) for path in folder.glob("*.jsonl"))
    return [json.loads(line) for line in lines if line.endswith("}\n")]


def has_come_to(folder, position):
    return any("done" in note or note.get("position", 0) >= position for note in notes(folder))


def start(rank, folder, options, begins):
    pid = os.fork()
    if pid != 0:
        return pid
    code = 1
    try:
        output = os.open(folder / f"output{rank}.txt", os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ.update(RANK=str(rank), WORLD_SIZE="2", KEEPSTEP_JOB=f"late-{os.getppid()}-{folder.name}")
        while not begins():
            time.sleep(0.001)
        sys.argv = [str(SCRIPT), "--plain", "--out", str(folder), "--samples", str(SAMPLES), *options]
        runpy.run_path(str(SCRIPT), run_name="__main__")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()  # a process that ends leaves its ring
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def what_went_wrong(pids, folder):
    deadline = time.monotonic() + LIMIT_S
    left = dict(pids)
    while left:
        for pid, rank in list(left.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del left[pid]
                if status:
                    kill(left)
                    return f"rank {rank} ended with status {status}"
        if time.monotonic() > deadline:
            for pid in left:
                subprocess.run([Path(sys.executable).with_name("py-spy"), "dump", "--pid", str(pid)], check=False)
            kill(left)
            return f"ranks {list(left.values())} did not end"
        time.sleep(0.002)
    read = {(note["rank"], note["position"]): note["ids"] for note in notes(folder) if "ids" in note}
    begins = {note["rank"]: note["begins"] for note in notes(folder) if "begins" in note}
    wanted = {(rank, position) for rank in (0, 1) for position in range(begins[rank] + 2, SAMPLES + 1, 2)}
    if read.keys() != wanted:
        return f"read {sorted(read)}"
    # Who comes when the other's first epoch is over finds its checkpoint, and begins there.
    both = [ids for (_, position), ids in sorted(read.items()) if position > max(begins.values())]
    used = sorted(itertools.chain.from_iterable(both))
    whole = sorted([*range(SAMPLES)] * 2)
    if max(begins.values()) == 0 and used != whole:
        return f"used {used}"
    return None


def kill(pids):
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


rng = random.Random(args.seed)
for number in range(args.rounds):
    late_by = rng.choice([2, 4, 6, 8, 12, 16, 24, 40, 1000])  # batches; 1000: until the first one has ended
    kills = rng.choice([[], ["--kill-loader", "4", "24", "--kill-loading", "20"]])
    folder = args.out / str(number)
    folder.mkdir(parents=True)
    ranks = {
        start(0, folder, kills, lambda: True): 0,
        start(1, folder, kills, lambda folder=folder, late_by=late_by: has_come_to(folder, late_by)): 1,
    }
    wrong = what_went_wrong(ranks, folder)
    if wrong is not None:
        print(f"round {number} of --seed {args.seed}, late by {late_by} batches, {kills}: {wrong}")
        for path in sorted(folder.glob("output*.txt")):
            print(f"{path.name}:\n{path.read_text()[-4000:]}")
        sys.exit(1)
