"""`keepstep ckpt` of memory://JOB: what the agents of a running job hold."""

import json
import mmap
import os
import re
import struct

import pytest

from fsdp2 import needs_fsdp2
from harness import JOBS, json_lines, open_files
from running_jobs import command, refused
from several_nodes import TOKEN, assert_nothing_is_left, kill, start_nodes, wait_for_steps


def ckpt(*words, code=0, variables=None):
    done = command("ckpt", *words, variables=variables)
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stdout


def rows(place, *options, **how):
    return json.loads(ckpt("ls", place, "--json", *options, **how))["checkpoints"]


def flip_a_byte(pid, rank):
    """Of every version of the shard of `rank` that process `pid`, an agent, holds."""
    flipped = 0
    for path, target in open_files(pid).items():
        if not re.match(rf"/memfd:keepstep-shard-{rank}\b", target):
            continue
        with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
            # src/state/vault/shard_vault.cc: a page, then text and data of each slot, in pages
            data, text = (-(-size // mmap.PAGESIZE) * mmap.PAGESIZE for size in struct.unpack_from("=QQ", memory, 16))
            for slot in range(2):
                memory[mmap.PAGESIZE + slot * (data + text) + text] ^= 1
            flipped += 1
    return flipped


@pytest.mark.long
@needs_fsdp2
def test_what_agents_of_two_nodes_hold_is_listed_shown_and_checked(tmp_path):
    name = f"held-{os.getpid()}"
    script = ["--out", tmp_path, "--until", 100_000, "--kind", "fsdp", "--sleep", 0.1]
    nodes = start_nodes(
        tmp_path,
        JOBS / "sharded.py",
        *script,
        world=1,
        options=["--rdzv-id", name, "--hang-timeout", "off", "--allow-inject"],
    )
    place = f"memory://{name}"
    try:
        wait_for_steps(tmp_path, 8)
        endpoint = nodes[0].command[nodes[0].command.index("--rdzv-endpoint") + 1]
        complete = [row for row in rows(place) if row["complete"]]
        assert complete[0]["step"] >= 7
        assert complete[0]["memory"]["nodes"] == [0, 1] and complete[0]["memory"]["fewest_copies"] >= 1
        assert [row["step"] for row in complete] == sorted((row["step"] for row in complete), reverse=True)
        # Without a place: the jobs of this machine. From anywhere: with the token.
        assert f"{place} (nodes 0, 1)" in command("ckpt", "ls").stdout  # other jobs may run here, too
        assert rows(f"memory://{endpoint}", "--rdzv-id", name, variables={"KEEPSTEP_TOKEN": TOKEN})
        assert "--token-file" in refused("ckpt", "show", f"memory://{endpoint}")
        assert "the launcher of node 1" in refused("ckpt", "show", f"memory://{nodes[1].process.pid}")
        assert "no step 1 (any more) is in memory" in refused("ckpt", "verify", f"{place}@1")
        shown = json.loads(ckpt("show", place, "--json"))
        weight = shown["tensors"]["model/first.weight"]
        assert weight["dtype"] == "float32" and weight["shape"] == [48, 16]
        assert [(part["offsets"], part["lengths"], part["ranks"]) for part in weight["parts"]] == [
            ([0, 0], [24, 16], [0]), ([24, 0], [24, 16], [1]),
        ]  # fmt: skip
        assert (
            shown["world"] == 2 and "schedule/last_epoch" in shown["objects"] and shown["capsules"].keys() == {"0", "1"}
        )
        # While it trains: whatever is overwritten, nothing is said to be corrupt.
        checked = json.loads(ckpt("verify", place, "--json"))["checkpoints"][0]
        assert checked["problems"] == [] and checked["memory"]["good"] >= 2

        # A rank that stands still lets nobody begin another step.
        assert "SIGSTOP" in command("inject", nodes[0].process.pid, "stop:rank=0").stdout
        assert flip_a_byte(nodes[1].process.pid, 0) >= 1
        problems = json.loads(ckpt("verify", place, "--json", code=1))["checkpoints"][0]["problems"]
        said = r"the copy of the shard of rank 0 on node 1 \(\S+\) at step (\d+) is corrupt"
        found = [re.fullmatch(said, problem) for problem in problems]
        assert all(found), problems
        newest = max(int(each[1]) for each in found)
        assert newest >= 7
        assert f"at step {newest} is corrupt" in refused("ckpt", "verify", f"{place}@{newest}")
    finally:
        for node in nodes:
            kill(node)
    assert f"no job '{name}'" in refused("ckpt", "show", place)
    assert_nothing_is_left(str(tmp_path))


def test_a_job_whose_agents_hold_nothing_says_so_and_nothing_in_memory_is_removed_or_kept(running, tmp_path):
    job = running("plain", world=2)
    job.wait_for_steps()
    place = f"memory://{job.name}"
    assert f"{place}: its agents hold no copies" in ckpt("ls", place)
    assert rows(place) == []
    for words in (["show", place], ["verify", place]):
        assert "its agents hold no copies" in refused("ckpt", *words)
    for words in (["rm", f"{place}@3"], ["pin", f"{place}@3"], ["export", place, "--out", tmp_path / "out"],
                  ["diff", place, tmp_path]):  # fmt: skip
        assert "overwritten as training goes on" in refused("ckpt", *words)
    assert not (tmp_path / "out").exists()
    job.stop()
    assert f"no job '{job.name}'" in refused("ckpt", "show", place)


def test_the_place_that_a_job_saves_to_is_listed_with_its_memory(tmp_path):
    name, saves = f"both-{os.getpid()}", tmp_path / "saves"
    script = [
        "--out",
        tmp_path,
        "--until",
        100_000,
        "--kind",
        "ddp",
        "--sleep",
        0.02,
        "--durable",
        saves,
        "--in-memory",
    ]
    nodes = start_nodes(tmp_path, JOBS / "sharded.py", *script, nodes=1, world=2, options=["--rdzv-id", name])
    try:
        journal = tmp_path / "journal" / "journal.jsonl"
        nodes[0].wait_for(lambda: any(line["event"] == "saved" for line in json_lines(journal)), "save")
        found = json.loads(command("ckpt", "ls", "--json").stdout)["checkpoints"]  # other jobs may run here, too
        mine = [row for row in found if row["where"] == f"memory://{name}" or str(saves) in row["where"]]
        assert {"memory" in row for row in mine} == {True, False}, found
        assert [row["step"] for row in mine] == sorted((row["step"] for row in mine), reverse=True)
        shown = json.loads(ckpt("show", f"memory://{name}", "--json"))
        (part,) = shown["tensors"]["model/first.weight"]["parts"]
        assert part["ranks"] == [0, 1]  # each has all of it
    finally:
        kill(nodes[0])
