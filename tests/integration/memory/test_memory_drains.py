"""Drains: what reaches the disk or S3 is whole, loads with plain DCP, and outlives the memory server."""

import os
import signal
import time
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from held import Held

from keepstep import _checkpoint
from keepstep.checkpoint.owners import let_go
from keepstep.torch.checkpoint import Writer
from memory_job import COLUMNS, ROWS, frozen, whole
from memory_nodes import finished

pytestmark = pytest.mark.long

MEBIBYTES = 24  # of a state that takes a moment to drain


def wait_until_drained(node, step):
    while True:
        (destination,) = node.status()["destinations"]
        if step in destination["drain"]["drained"]:
            return
        assert destination["drain"]["failure"] == "", destination


def test_a_job_under_torchrun_drains_to_disk_and_plain_dcp_loads_it(nodes, tmp_path):
    node = nodes()
    disk = tmp_path / "disk"
    finished(node.torchrun(2, "save", "memory://run", 1, 2, "sync", "end=1", f"drain={disk}"))
    wait_until_drained(node, 2)
    wait_until_drained(node, 1)
    node.kill_server()
    loaded = {
        "model": {"sharded": torch.zeros(ROWS, COLUMNS), "frozen": torch.zeros(1024, 1024)},
        "step": 0,
        "note": "",
    }
    dcp.load(loaded, checkpoint_id=disk / "step-000000000002", no_dist=True)
    assert loaded["model"]["sharded"].equal(whole(2)) and loaded["model"]["frozen"].equal(frozen())
    assert (loaded["step"], loaded["note"]) == (2, "xx")
    assert "loaded 2 on 3 ranks" in finished(node.torchrun(3, "load", disk.as_uri(), 2))
    assert node.ckpt("verify", str(disk), "--all").returncode == 0


def save_here(node, monkeypatch, steps, drain):
    for name, value in node.environment.items():
        monkeypatch.setenv(name, value)
    for step in steps:
        random = torch.Generator().manual_seed(step)
        state = {f"w{i}": torch.randn(1 << 20, generator=random) for i in range(MEBIBYTES // 4)}
        dcp.save(state, storage_writer=Writer("memory://run", step, drain=drain, job="job"), no_dist=True)
    let_go()


def complete_and_good(url):
    """The complete steps there, each of them verified."""
    steps = []
    for info in _checkpoint.Catalog(_checkpoint.open_store(url)).checkpoints():
        if info.complete:
            manifest = _checkpoint.Catalog(_checkpoint.open_store(url)).manifest(info.step)
            folder = _checkpoint.folder_of(info.step) + "/"
            files = _checkpoint.StoredFiles(manifest, [(_checkpoint.open_store(url), folder)], True)
            verifier = _checkpoint.Verifier(files)
            while verifier.running:
                time.sleep(0.01)
            assert verifier.problems() == []
            steps.append(info.step)
    return steps


@pytest.mark.parametrize("name_ends", [".distcp", ".metadata", "manifest.json"])
def test_a_server_that_is_killed_while_it_drains_leaves_whole_checkpoints_on_disk(
    nodes, tmp_path, monkeypatch, name_ends
):
    node = nodes()
    disk = tmp_path / "disk"
    held = Held(tmp_path / "held", name_ends)
    without = dict(node.environment)
    node.environment |= held.environment
    node.serve()
    node.environment = without
    save_here(node, monkeypatch, [1], str(disk))
    held.wait()  # it has written the file, and is about to give it its name
    node.kill_server()
    held.close()
    assert complete_and_good(disk.as_uri()) == []
    assert not list(disk.glob(f"step-*/*{name_ends}"))
    # The next server drains what it gets, beside what the dead one left.
    save_here(node, monkeypatch, [2], str(disk))
    wait_until_drained(node, 2)
    assert complete_and_good(disk.as_uri()) == [2]


def test_a_server_that_is_killed_while_it_drains_to_s3(nodes, versitygw, monkeypatch):
    aws = {name: value for name, value in versitygw.environment().items() if name.startswith("AWS_")}
    for name, value in aws.items():
        monkeypatch.setenv(name, value)
    bucket = versitygw.bucket("drained")
    node = nodes(**aws)
    save_here(node, monkeypatch, [1], bucket)
    store = _checkpoint.open_store(bucket)
    while not store.list("owner.json"):  # it has begun
        pass
    node.kill_server()
    assert set(complete_and_good(bucket)) <= {1}
    save_here(node, monkeypatch, [2], bucket)
    wait_until_drained(node, 2)
    assert 2 in complete_and_good(bucket)


def test_a_drain_uses_the_credentials_of_the_job_and_is_tried_again(nodes, versitygw, monkeypatch):
    aws = {name: value for name, value in versitygw.environment().items() if name.startswith("AWS_")}
    for name, value in aws.items():
        monkeypatch.setenv(name, value)
    bucket = versitygw.bucket("credentials")
    node = nodes(**(aws | {"AWS_SECRET_ACCESS_KEY": "wrong"}))
    with pytest.MonkeyPatch.context() as patch:
        save_here(node, patch, [1], bucket)
    while True:
        (destination,) = node.status()["destinations"]
        if destination["drain"]["failures"]:
            break
    refused = node.memory("stop", check=False)
    assert refused.returncode == 1 and "1 checkpoints are not drained yet" in refused.stderr
    node.environment.update(aws)
    save_here(node, monkeypatch, [2], bucket)  # the next job of the destination brings good ones
    while sorted(node.status()["destinations"][0]["drain"]["drained"]) != [1, 2]:
        time.sleep(0.05)
    assert complete_and_good(bucket) == [1, 2]
    node.memory("stop")


def test_a_step_that_is_drained_makes_room_first(nodes, tmp_path, monkeypatch):
    node = nodes(KEEPSTEP_MEMORY_LIMIT=f"{3 * MEBIBYTES}MiB")
    disk = Path(tmp_path / "disk")
    for step in (1, 2, 3, 4):
        save_here(node, monkeypatch, [step], str(disk))
        wait_until_drained(node, step)
    assert complete_and_good(disk.as_uri()) == [1, 2, 3, 4]
    assert [version["step"] for version in node.status()["destinations"][0]["versions"]] == [3, 4]
    os.kill(node.pid(), signal.SIGTERM)
