"""Sharded models through DCP with keepstep's plug-ins, under real launchers, on disk and S3."""

import json
import os
import re
import subprocess
import sys
import time

import pytest

from harness import JOBS, KEEPSTEP, environment

SCRIPT = JOBS / "dcp_sharded.py"


def run(ranks, what, url, step, backend="gloo", replicas=1, launcher="torchrun", values=None):
    """What rank 0 says of the whole state."""
    if launcher == "torchrun":
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    else:
        command = [KEEPSTEP, "run", "--nproc-per-node", str(ranks)]
    values = {
        **environment(),
        "PYTHONWARNINGS": "ignore",
        "KEEPSTEP_COMMAND": str(KEEPSTEP),
    } | (values or {})
    if backend == "keepstep" and launcher == "torchrun":
        values |= {"KEEPSTEP_STORE": "1", "KEEPSTEP_JOB": f"checkpoints-{os.getpid()}-{time.monotonic_ns()}"}
    done = subprocess.run(
        [*command, SCRIPT, what, str(url), str(step), backend, str(replicas)],
        env=values, capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    (told,) = re.findall(r"\{.*\}", done.stdout)
    return json.loads(told)


def assert_same(loaded, saved):
    assert loaded == saved and len(saved) > 15


@pytest.mark.long
def test_fsdp2_saved_by_two_ranks_is_loaded_by_one(tmp_path):
    saved = run(2, "save", tmp_path, 5)
    assert len(list((tmp_path / "step-000000000005").glob("*.distcp"))) == 2
    assert_same(run(1, "load", tmp_path, 0), saved)


@pytest.mark.long
@pytest.mark.parametrize(("before", "after"), [((3, 1), (2, 1)), ((1, 1), (4, 1)), ((4, 2), (3, 1)), ((2, 1), (4, 2))])
def test_fsdp2_and_hsdp_are_loaded_by_other_meshes(tmp_path, before, after):
    saved = run(before[0], "save", tmp_path, 5, replicas=before[1])
    assert_same(run(after[0], "load", tmp_path, 5, replicas=after[1]), saved)


@pytest.mark.long
def test_async_save_of_sharded_state_holds_what_was_there_when_it_was_called(tmp_path):
    saved = run(2, "async", tmp_path, 5)
    assert_same(run(3, "load", tmp_path, 5), saved)


@pytest.mark.long
@pytest.mark.parametrize("launcher", ["torchrun", "keepstep"])
def test_it_works_with_the_backend_keepstep(tmp_path, launcher):
    saved = run(2, "save", tmp_path, 5, backend="keepstep", launcher=launcher)
    assert_same(run(3, "load", tmp_path, 5, backend="keepstep", launcher=launcher), saved)


@pytest.mark.long
def test_it_works_on_s3(versitygw):
    url, values = versitygw.bucket("run"), versitygw.environment()
    saved = run(2, "save", url, 5, values=values)
    assert_same(run(3, "load", url, 0, values=values), saved)
