"""Accelerate's own tests of its training loop pass with its own DDP, and with keepstep's Accelerator."""

import subprocess
import sys

import pytest
from killer import SCRIPTS

from harness import environment, finish, json_lines, start

KILLS = ["--inject", "kill:rank=0,step=5,phase=update", "--inject", "kill:rank=1,step=8,phase=backward"]


def passed(folder):
    return sorted((line["rank"], line["loops"]) for path in folder.glob("?.jsonl") for line in json_lines(path))


@pytest.mark.long
@pytest.mark.parametrize("test", ["training", "accumulation"])
def test_with_its_own_ddp(tmp_path, test):
    command = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += [SCRIPTS / "accelerate_own.py", "--out", tmp_path, "--test", test]
    ran = subprocess.run([sys.executable, *command], env=environment(), capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert passed(tmp_path) == [("0", None), ("1", None)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("test", "loops", "kills"), [("training", 2, []), ("first training", 1, KILLS), ("accumulation", 1, [])]
)
def test_with_keepstep(tmp_path, test, loops, kills):
    """Nothing fails and is then redone. (A spare that comes too late has not trained, and finds that.)"""
    words = ["--keepstep", "--out", tmp_path, "--test", test]
    process, command = start(tmp_path, SCRIPTS / "accelerate_own.py", *words, spares=1 if kills else 0, options=kills)
    job = finish(tmp_path, process, command)
    assert job.exit_code == 0 and not job.events("failure_outlived"), job.explain()
    assert kills or "Error" not in job.output, job.explain()
    assert passed(tmp_path) == [("0", loops), ("1", loops)], job.explain()
