"""In a fresh root: trains examples/gpt twice, once with a rank killed, and prints what came of it as JSON.

python kill_a_rank.py KEEPSTEP TRAIN.PY FOLDER
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

LAST_STEP = 60
LIMIT_S = 300


def start(keepstep, script, folder):
    command = [
        keepstep, "run", "--nproc-per-node", "2", "--spares", "1", "--journal", folder / "journal", script,
        "--until", LAST_STEP, "--layers", 1, "--width", 32, "--out", folder / "digests", "--ids", folder / "ids",
    ]  # fmt: skip
    return subprocess.Popen(list(map(str, command)), env=os.environ | {"OMP_NUM_THREADS": "1"})


def samples_of(rank, folder):
    """(pid, steps begun) of the process that holds `rank`; none yet: (None, 0)."""
    for path in (folder / "ids").glob("*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        if lines and lines[-1]["rank"] == rank:
            return int(path.stem), len(lines)
    return None, 0


def finish(job):
    code = job.wait(LIMIT_S)
    if code != 0:
        raise SystemExit(f"the job ended with {code}")


def main():
    keepstep, script, folder = sys.argv[1:]
    calm, hit = Path(folder) / "calm", Path(folder) / "hit"
    finish(start(keepstep, script, calm))
    job = start(keepstep, script, hit)
    deadline = time.monotonic() + LIMIT_S
    pid, begun = None, 0
    while begun < 5:
        if job.poll() is not None or time.monotonic() > deadline:
            raise SystemExit("rank 1 did not begin 5 steps")
        time.sleep(0.01)
        pid, begun = samples_of(1, hit)
    stacks = subprocess.run([keepstep, "stacks"], capture_output=True, text=True, timeout=LIMIT_S)
    os.kill(pid, signal.SIGKILL)
    finish(job)
    report = json.loads(subprocess.check_output([keepstep, "report", "--json", hit / "journal"]))
    found = {
        "same": (calm / "digests").read_text() == (hit / "digests").read_text(),
        "last_step": report["last_step"],
        "steps": report["steps"],
        "lost_steps": report["totals"]["lost_steps"],
        "killed": [fault["signal"] for recovery in report["recoveries"] for fault in recovery["faults"]],
        "stacks": stacks.stdout + stacks.stderr,
        "left_in_shm": os.listdir("/dev/shm"),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
