"""Checkpoints in a bucket of a real S3 server: the same promises as on a disk."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed.checkpoint as dcp
from states import assert_same, load, save, state
from torch.distributed.checkpoint.api import CheckpointException

from keepstep import _checkpoint
from keepstep.checkpoint.owners import let_go
from keepstep.torch.checkpoint import Writer

KEEPSTEP = os.environ.get("KEEPSTEP_COMMAND") or shutil.which("keepstep", path=Path(sys.executable).parent)


@pytest.fixture
def bucket(versitygw, monkeypatch):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in versitygw.environment().items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)
    return versitygw.bucket("team/run")


def test_what_was_saved_to_s3_comes_back_and_dcp_loads_a_copy(bucket, tmp_path):
    for step in (1, 2, 3):
        save(bucket, step, keep=2)
    loaded, reader = load(bucket)
    assert reader.step == 3
    assert_same(loaded, state(3))
    assert_same(load(bucket, 2)[0], state(2))
    store = _checkpoint.open_store(bucket)
    assert [info.step for info in _checkpoint.Catalog(store).checkpoints()] == [2, 3]
    for found in store.list("step-000000000003/"):
        (tmp_path / Path(found.key).name).write_bytes(store.read_all(found.key, found.bytes))
    loaded = load(tmp_path)[0]
    assert_same(loaded, state(3))
    dcp.load(loaded, checkpoint_id=tmp_path)
    assert_same(loaded, state(3))
    ran = subprocess.run([KEEPSTEP, "ckpt", "verify", bucket, "--all", "--json"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert [found["problems"] for found in json.loads(ran.stdout)["checkpoints"]] == [[], []]


def test_a_job_that_was_taken_over_on_s3_completes_nothing(bucket):
    class TakenOver(Writer):
        def finish(self, metadata, results):
            script = "import sys; from keepstep import _checkpoint as c; c.Owner(c.open_store(sys.argv[1]), 'the job')"
            subprocess.run([sys.executable, "-c", script, bucket], check=True)
            super().finish(metadata, results)

    with pytest.raises(CheckpointException) as caught:
        dcp.save(state(1), storage_writer=TakenOver(bucket, 1, job="the job"))
    assert "was taken over by job 'the job'" in str(caught.value.failures[0][0])
    let_go()
    save(bucket, 1, seed=2, job="the job")
    assert_same(load(bucket)[0], state(2))


def test_wrong_credentials_and_buckets_are_named(bucket, monkeypatch):
    with pytest.raises(CheckpointException) as caught:
        load(bucket.replace("s3://", "s3://no-such-"))
    assert "no-such-" in str(caught.value.failures[0][0])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(CheckpointException) as caught:
        dcp.save(state(1), storage_writer=Writer(bucket, 1))
    assert "the secret key from the environment" in str(caught.value.failures[0][0])


def test_credentials_are_those_of_the_environment_that_was_given(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "of this process")
    nothing = {"AWS_EC2_METADATA_DISABLED": "true", "HOME": "/nowhere"}
    store = _checkpoint.open_store("s3://bucket/x?endpoint=http://127.0.0.1:1&region=here", nothing)
    with pytest.raises(_checkpoint.Error, match="no credentials"):
        store.head("some")
