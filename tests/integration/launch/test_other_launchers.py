"""Ranks that torchrun, srun or a test started: the rootless Store, and backend "keepstep" without recovery."""

import json
import os
import subprocess
import time

import pytest

from harness import JOBS, ROOT

PYTHON = ROOT / ".venv" / "bin" / "python"
SCRIPT = JOBS / "standalone.py"


def environment(name):
    values = dict(os.environ, KEEPSTEP_STORE="1", KEEPSTEP_JOB=f"{name}-{os.getpid()}-{time.monotonic_ns()}")
    values["KEEPSTEP_COMMAND"] = str(ROOT / "build" / "keepstep")
    return values


def run_ranks(what, world, *arguments, limit_s=120):
    values = environment(what)
    ranks = [
        subprocess.Popen(
            [PYTHON, SCRIPT, what, *arguments],
            env={**values, "RANK": str(rank), "WORLD_SIZE": str(world)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    outputs = [rank.communicate(timeout=limit_s)[0] for rank in ranks]
    return [rank.returncode for rank in ranks], outputs, values["KEEPSTEP_JOB"]


def run_forked(folder, what, world, *arguments, limit_s=120):
    """The same ranks, forked once torch is imported: for what does not depend on how they came to be."""
    values = environment(what)
    parent = subprocess.run(
        [PYTHON, JOBS / "forked_ranks.py", folder, SCRIPT, *[json.dumps([what, *arguments])] * world],
        env=values, stdout=subprocess.PIPE, text=True, timeout=limit_s,
    )  # fmt: skip
    outputs = [(folder / f"rank-{rank}.txt").read_text() for rank in range(world)]
    return json.loads(parent.stdout), outputs, values["KEEPSTEP_JOB"]


def agents_of(job):
    found = subprocess.run(["pgrep", "-f", f"keepstep node --job .*{job}"], capture_output=True, text=True)
    return found.stdout.split()


@pytest.mark.parametrize(("what", "world"), [pytest.param("gloo", 2, marks=pytest.mark.long), ("keepstep", 3)])
def test_a_job_without_keepstep_run(what, world):
    codes, outputs, job = run_ranks(what, world)
    assert codes == [0] * world, outputs
    assert all("fine" in output for output in outputs), outputs
    deadline = time.monotonic() + 30
    while agents_of(job):  # the agent ends a moment after its last rank
        assert time.monotonic() < deadline, "the node's agent outlives its job"
        time.sleep(0.1)


def test_there_may_be_more_groups_one_after_the_other_than_places(tmp_path):
    codes, outputs, _ = run_forked(tmp_path, "groups", 2)
    assert codes == [0, 0], outputs
    assert all("fine" in output for output in outputs), outputs


@pytest.mark.long
def test_groups_made_and_destroyed_leave_nothing_behind(tmp_path):
    codes, outputs, _ = run_forked(tmp_path, "generations", 2, "60")
    assert codes == [0, 0], outputs


@pytest.mark.long
def test_a_thousand_generations_leave_nothing_behind():
    codes, outputs, _ = run_ranks("generations", 2, "1000", limit_s=900)
    assert codes == [0, 0], outputs


def test_torchrun_starts_it_with_one_environment_variable():
    done = subprocess.run(
        [PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", SCRIPT, "gloo"],
        env=environment("torchrun"), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("fine") == 2, done.stdout + done.stderr


def test_a_cpp_program_needs_no_python(tmp_path):
    program = ROOT / "build" / "keepstep_example_all_reduce"
    values = environment("cpp")
    ranks = [
        subprocess.Popen(
            [program, values["KEEPSTEP_JOB"], str(rank), "3"], env=values, stdout=subprocess.PIPE, text=True
        )
        for rank in range(3)
    ]
    outputs = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, 0], outputs
    for rank, output in enumerate(outputs):
        assert f"rank {rank} of 3: the sum is 6, rank {(rank + 2) % 3} sent {(rank + 2) % 3}" in output, outputs


def test_a_killed_rank_is_named_by_the_others(tmp_path):
    codes, outputs, _ = run_forked(tmp_path, "killed", 3)
    assert codes == [0, -9, 0], outputs
    for rank in (0, 2):
        assert "all_reduce was interrupted: rank 1 (process " in outputs[rank], outputs
        assert "stays interrupted" in outputs[rank], outputs


@pytest.mark.long
def test_an_exception_of_one_rank_ends_the_waiting_of_the_others():
    codes, outputs, _ = run_ranks("raises", 3)
    assert codes == [0, 1, 0], outputs
    for rank in (0, 2):
        assert "rank 1 aborted: it ended with ValueError: a bug of this rank" in outputs[rank], outputs


def test_an_abort_ends_what_the_others_wait_for(tmp_path):
    codes, outputs, _ = run_forked(tmp_path, "aborted", 3)
    assert codes == [0, 0, 0], outputs
    assert all("rank 0 aborted: dist.abort was called" in output for output in outputs[1:]), outputs


def test_a_missing_rank_is_named(tmp_path):
    codes, outputs, _ = run_forked(tmp_path, "missing", 3)
    assert codes == [0, 0, 0], outputs
    assert all("did not join within 1 s: rank 1" in outputs[rank] for rank in (0, 2)), outputs


def test_without_an_agent_to_start_it_says_so():
    done = subprocess.run(
        [PYTHON, "-c", "from keepstep import _node; _node.link('x')"],
        env={**environment("none"), "KEEPSTEP_COMMAND": "/bin/false"}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode != 0
    assert "/bin/false node` ended with status 1" in done.stderr
