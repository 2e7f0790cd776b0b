"""Checkpoints in memory under torchrun: they outlive all of its processes."""

import json
import os
import signal

import pytest

from memory_nodes import finished, lines_until

pytestmark = pytest.mark.long
KINDS = ("sync", "async")


def kill_all(job, world):
    """SIGKILL for every worker and the launcher, of a job whose ranks have all said their pid."""
    pids = []
    for line in job.stdout:
        if line.startswith("pid "):
            pids.append(int(line.split()[1]))
        if len(pids) == world:
            break
    assert len(pids) == world
    for pid in (job.pid, *pids):
        os.kill(pid, signal.SIGKILL)
    job.wait()


@pytest.mark.parametrize("kind", KINDS)
def test_all_workers_and_the_launcher_are_killed_and_another_world_size_resumes(nodes, kind):
    node = nodes()
    job = node.torchrun(4, "save", "memory://run", 1, 3, kind)
    lines_until(job, "saved 3")
    kill_all(job, 4)
    assert "loaded 3 on 2 ranks, equal" in finished(node.torchrun(2, "load", "memory://run", 3))
    # And goes on there, as the same job.
    job = node.torchrun(3, "save", "memory://run", 4, 4, kind, "keep=2")
    lines_until(job, "saved 4")
    kill_all(job, 3)
    assert "loaded 4 on 1 ranks, equal" in finished(node.torchrun(1, "load", "memory://run", 4))
    versions = node.status()["destinations"][0]["versions"]
    assert [version["step"] for version in versions] == [3, 4]


def test_commands_see_checkpoints_in_memory(nodes, tmp_path):
    node = nodes()
    finished(node.torchrun(2, "save", "memory://run", 1, 2, "sync", "end=1"))
    listed = json.loads(node.ckpt("ls", "memory://run", "--json").stdout)
    assert [(row["step"], row["complete"]) for row in listed["checkpoints"]] == [(2, True), (1, True)]
    assert [row["where"] for row in json.loads(node.ckpt("ls", "--json").stdout)["checkpoints"]] == ["memory://run"] * 2
    verified = node.ckpt("verify", "memory://run", "--all", "--json")
    assert verified.returncode == 0, verified.stderr
    assert [found["problems"] for found in json.loads(verified.stdout)["checkpoints"]] == [[], []]
    exported = node.ckpt("export", "memory://run@1", "--out", str(tmp_path / "out"), "--prefix", "model.")
    assert exported.returncode == 0, exported.stderr
    assert list((tmp_path / "out").glob("*.safetensors"))
    assert node.ckpt("pin", "memory://run@1").returncode == 0
    assert node.ckpt("rm", "memory://run@1").returncode == 1
    assert node.ckpt("pin", "memory://run@1", "--remove").returncode == 0
    assert node.ckpt("rm", "memory://run@1").returncode == 0
    assert node.ckpt("diff", "memory://run@2", "memory://run@2", "--data").returncode == 0
    assert [version["step"] for version in node.status()["destinations"][0]["versions"]] == [2]


def test_what_did_not_change_is_held_once(nodes):
    node = nodes()
    finished(node.torchrun(2, "save", "memory://run", 1, 5, "sync", "end=1"))
    status = node.status()
    sharded, frozen = 512 * 1024 * 4, 1024 * 1024 * 4
    assert status["logical_bytes"] > 5 * (sharded + frozen)
    # Objects, pickles and what torch.save puts around tensors are the rest.
    assert 5 * sharded + frozen < status["unique_bytes"] < 5 * sharded + frozen + (200 << 10)
    assert status["used_bytes"] < 5 * sharded + frozen + (1 << 20)


@pytest.mark.parametrize("where", ["begin", "file", "written", "complete", "completed"])
def test_a_job_that_is_killed_in_the_middle_of_a_save_leaves_whole_checkpoints_only(nodes, where):
    node = nodes()
    finished(node.torchrun(2, "save", "memory://run", 1, 1, "sync", "end=1"))
    died = node.torchrun(2, "die", "memory://run", 2, where)
    died.communicate(timeout=120)
    assert died.returncode != 0
    newest = 2 if where == "completed" else 1
    assert f"loaded {newest} on 2 ranks" in finished(node.torchrun(2, "load", "memory://run", newest))
    verified = node.ckpt("verify", "memory://run", "--all", "--json")
    assert verified.returncode == 0, verified.stderr
    # The next start saves the same step.
    finished(node.torchrun(2, "save", "memory://run", newest + 1, newest + 1, "sync", "end=1"))
    assert f"loaded {newest + 1}" in finished(node.torchrun(1, "load", "memory://run", newest + 1))
