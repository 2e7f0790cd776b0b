"""Runs Lightning's own tests with its own DDP and with keepstep, two ranks each, and prints what passed.

    python tests/strangers/library_tests.py FOLDER_WITH_TESTS_PYTORCH [FILE...] [--out FOLDER]

A job runs the tests of one file until one fails on a rank, or a job ends or stands still in it; another one goes on
behind that test. Tests that themselves name a strategy, several devices or an accelerator keep them.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

SCRIPT = Path(__file__).parent / "scripts" / "library_rank.py"
BIN = Path(sys.executable).parent
STILL_S = 90  # without a line
STRATEGIES = ("ddp", "keepstep")
# What exercises the training loop.
FILES = (
    "loops/test_training_loop.py", "loops/test_training_loop_flow_scalar.py", "loops/test_training_loop_flow_dict.py",
    "loops/test_training_epoch_loop.py", "loops/optimization/test_automatic_loop.py",
    "loops/optimization/test_manual_loop.py", "loops/optimization/test_closure.py",
    "trainer/flags/test_val_check_interval.py", "trainer/flags/test_min_max_epochs.py",
    "trainer/flags/test_check_val_every_n_epoch.py", "trainer/flags/test_limit_batches.py",
    "trainer/optimization/test_backward_calls.py", "trainer/logging_/test_train_loop_logging.py",
)  # fmt: skip


def launcher(strategy):
    if strategy == "keepstep":
        return [BIN / "keepstep", "run", "--nproc-per-node", "2"]
    return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "0"]


def collected(checkout, file):
    """The tests in `file`, by name."""
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", "-o", "addopts=",
               f"--rootdir={checkout}", f"tests_pytorch/{file}"]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": f"{checkout}:{os.environ.get('PYTHONPATH', '')}"}
    ran = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)
    return [line for line in ran.stdout.splitlines() if "::" in line]


def lines_of(out):
    return [json.loads(line) for path in sorted(out.glob("rank*.jsonl")) for line in path.read_text().splitlines()]


def end(process):
    """torchrun's workers are in sessions of their own: it ends them."""
    process.terminate()
    try:
        process.wait(45)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run(checkout, strategy, tests, out):
    """One job; what it found out of each test, and the test in which it ended early, or None."""
    out.mkdir(parents=True)
    (out / "tests.txt").write_text("\n".join(tests))
    command = [*launcher(strategy), SCRIPT, "--strategy", strategy, "--out", out, "--checkout", checkout,
               out / "tests.txt"]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (out / "output.txt").open("wb") as output:
        process = subprocess.Popen(list(map(str, command)), stdout=output, stderr=subprocess.STDOUT, env=environment,
                                   stdin=subprocess.DEVNULL, start_new_session=True)  # fmt: skip
    seen, since = 0, time.monotonic()
    why = "the job ended"
    while process.poll() is None:
        time.sleep(0.2)
        lines = lines_of(out)
        failed = any(line.get("outcome") == "failed" for line in lines)
        if len(lines) != seen:
            seen, since = len(lines), time.monotonic()
        elif time.monotonic() - since > (5 if failed else STILL_S):
            why = "stands still"
            end(process)
    outcomes, begun = {}, []
    for line in lines_of(out):
        if "begins" in line:
            begun += [line["begins"]] if line["begins"] not in begun else []
        else:
            outcomes.setdefault(line["test"], []).append((line["outcome"], line["why"]))
    found = {}
    for test in begun:
        ranks = outcomes.get(test, [])
        if any(outcome == "failed" for outcome, _ in ranks):
            found[test] = ("failed", next(text for outcome, text in ranks if outcome == "failed"))
        elif len(ranks) < 2:
            found[test] = ("failed", f"{why}: {(out / 'output.txt').read_text(errors='replace')[-1500:]}")
        else:
            found[test] = ranks[0]
    return found


def outcomes_of(checkout, strategy, file, out):
    left = collected(checkout, file)
    found = {}
    for number in range(len(left)):
        job = run(checkout, strategy, left, out / f"{strategy}-{file.replace('/', '-')}-{number}")
        found |= job
        left = [test for test in left if test not in found]
        if not left:
            break
        if not job:
            sys.exit(f"no test of {file} began with {strategy}; see {out}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=lambda text: Path(text).resolve())
    parser.add_argument("files", nargs="*", default=FILES)
    parser.add_argument("--out", type=Path, default=None)
    chosen = parser.parse_args()
    out = Path(chosen.out or tempfile.mkdtemp()).resolve()
    differing = {}
    for file in chosen.files:
        both = {strategy: outcomes_of(chosen.checkout, strategy, file, out) for strategy in STRATEGIES}
        counts = {each: Counter(outcome for outcome, _ in found.values()) for each, found in both.items()}
        print(f"{file}: " + "; ".join(f"{each} {dict(counts[each])}" for each in STRATEGIES), flush=True)
        for test, (outcome, why) in both["ddp"].items():
            theirs = both["keepstep"].get(test, ("not run", ""))
            if outcome == "passed" != theirs[0]:
                differing[test] = theirs
                print(f"  passes with ddp only: {test}\n    " + theirs[1].replace("\n", "\n    "), flush=True)
            elif outcome == "failed":
                last = why.strip().splitlines()[-1:] or [""]
                print(f"  fails with ddp (keepstep: {theirs[0]}): {test}: {last[0]}", flush=True)
    (out / "differing.json").write_text(json.dumps(differing))
    return bool(differing)


if __name__ == "__main__":
    sys.exit(main())
