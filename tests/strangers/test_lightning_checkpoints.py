"""Checkpoints of a Trainer that the node's background writer writes: whole, and those of the undisturbed job."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from killer import SCRIPTS
from test_integrations import assert_same_as, left_by

from harness import KEEPSTEP, finish, start
from keepstep._errors import KeepstepError
from keepstep.integrations.lightning import KeepstepCheckpointIO

UNTIL = 14


def run_trainer(folder, *arguments, spares=1):
    words = ["--out", folder, "--until", UNTIL, "--case", "background", *arguments]
    process, command = start(folder, SCRIPTS / "lightning_fit.py", *words, world=4, spares=spares)
    return finish(folder, process, command)


def problems_of(destination):
    """What `keepstep ckpt verify` finds wrong with the checkpoints there."""
    ran = subprocess.run([KEEPSTEP, "ckpt", "verify", destination, "--all", "--json"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return [found["problems"] for found in json.loads(ran.stdout)["checkpoints"]]


def assert_same(mine, theirs, at=""):
    """But for the folders in the names of files."""
    assert type(mine) is type(theirs), at
    if isinstance(mine, torch.Tensor):
        assert torch.equal(mine, theirs), at
    elif isinstance(mine, dict):
        for key, other in zip(mine, theirs, strict=True):
            assert key == other or Path(key).name == Path(other).name, at
            assert_same(mine[key], theirs[other], f"{at}.{key}")
    elif isinstance(mine, list | tuple):
        for index, (one, other) in enumerate(zip(mine, theirs, strict=True)):
            assert_same(one, other, f"{at}.{index}")
    elif isinstance(mine, str) and "/" in mine:
        assert Path(mine).name == Path(theirs).name, at
    else:
        assert mine == theirs, at


@pytest.mark.long
@pytest.mark.parametrize("died", ["0:on_train_batch_start:8", "0:on_validation_end:8", "2:on_validation_end:8"])
def test_checkpoints_survive_the_rank_that_saved_them(tmp_path, died):
    """Rank 0 dies right after a save, or right before it."""
    reference = run_trainer(tmp_path / "undisturbed", spares=0)
    expected = left_by(reference)
    job = run_trainer(tmp_path / "killed", "--die", died)
    assert (tmp_path / "killed" / "died").exists(), job.explain()
    assert_same_as(expected, job)
    io = KeepstepCheckpointIO()
    for name in expected["saved"]:
        assert problems_of(job.folder / "checkpoints" / name) == [[]]
        mine, theirs = (io.load_checkpoint(each.folder / "checkpoints" / name) for each in (job, reference))
        assert_same(mine, theirs)
    weights = theirs["state_dict"]
    empty = {name: torch.zeros_like(value) for name, value in weights.items()}
    dcp.load({"state_dict": empty}, checkpoint_id=job.folder / "checkpoints" / name / "step-000000000000")
    assert_same(empty, dict(weights))


@pytest.mark.long
def test_checkpoints_go_to_s3(tmp_path, versitygw, monkeypatch):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in versitygw.environment().items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)
    bucket = versitygw.bucket("team/trainer")
    monkeypatch.setenv("CHECKPOINTS_TO", bucket)
    job = run_trainer(tmp_path, "--die", "0:on_train_batch_start:8")
    assert job.exit_code == 0, job.explain()
    io = KeepstepCheckpointIO(bucket)
    assert problems_of(io._url_of("last.ckpt")) == [[]]
    assert io.load_checkpoint("last.ckpt")["global_step"] == UNTIL
    io.remove_checkpoint("last.ckpt")
    with pytest.raises(KeepstepError, match="step 0 is not there"):
        io.load_checkpoint("last.ckpt")
