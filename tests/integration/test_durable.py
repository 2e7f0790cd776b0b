"""``run.checkpoint``: a job that ends, or is killed with all it has, goes on from what it saved, with the same bits."""

import os
import shutil
import signal
import subprocess
import time

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import FSDPModule

from harness import JOBS, KEEPSTEP, finish, start
from test_recovery_across_nodes import wait_for_steps

pytestmark = pytest.mark.skipif(
    not hasattr(FSDPModule, "reset_iter_state"), reason="FSDP2 of this torch cannot leave a step in the middle"
)

UNTIL = 12


def begin(folder, saves, *extra, world=2, kind="fsdp", until=UNTIL, inject=(), spares=0):
    injected = [part for text in inject for part in ("--inject", text)]
    return start(
        folder, JOBS / "sharded.py", "--out", folder, "--until", until, "--kind", kind, "--durable", saves, *extra,
        world=world, spares=spares, options=injected,
    )  # fmt: skip


def run(folder, saves, *extra, **how):
    process, command = begin(folder, saves, *extra, **how)
    return finish(folder, process, command)


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """A job that nothing disturbs, by kind."""
    known = {}

    def get(kind):
        if kind not in known:
            folder = tmp_path_factory.mktemp(f"durable-{kind}")
            known[kind] = run(folder / "job", folder / "saves", kind=kind)
            assert known[kind].exit_code == 0, known[kind].explain()
        return known[kind]

    return get


def assert_rest(job, reference, first):
    """`job` made the steps from `first` on, with the bits of `reference`."""
    assert job.exit_code == 0, job.explain()
    rest = reference.metrics[first - 1 :]
    assert [line["step"] for line in job.metrics] == [line["step"] for line in rest], job.explain()
    assert [line["loss"] for line in job.metrics] == [line["loss"] for line in rest], job.explain()
    for rank, final in reference.finals().items():
        assert job.finals()[rank]["final"] == final["final"], f"rank {rank}{job.explain()}"


def wait_for_save(saves, process, limit_s=60):
    deadline = time.monotonic() + limit_s
    while not saved_steps(saves):
        assert process.poll() is None and time.monotonic() < deadline, "nothing was saved"
        time.sleep(0.02)


def saved_steps(saves):
    return sorted(int(path.parent.name.removeprefix("step-")) for path in saves.glob("step-*/manifest.json"))


@pytest.mark.parametrize("kind", ["fsdp", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("ddp", "zero"))])
def test_a_job_that_ended_goes_on_from_its_last_step(tmp_path, whole, kind):
    saves = tmp_path / "saves"
    ended = run(tmp_path / "first", saves, kind=kind, until=6)
    assert ended.exit_code == 0, ended.explain()
    assert saved_steps(saves) == [4, 6], ended.explain()
    job = run(tmp_path / "second", saves, kind=kind)
    assert_rest(job, whole(kind), 7)
    assert "goes on from step 6" in job.output
    assert not ended.events("not_saved") + job.events("not_saved"), job.explain()
    assert saved_steps(saves)[-1] == UNTIL
    assert len(saved_steps(saves)) == 3, "so many are kept"  # which, depends on how long the save of step 8 took


def test_everything_killed_goes_on_from_the_newest_save(tmp_path, whole):
    saves = tmp_path / "saves"
    process, command = begin(tmp_path / "first", saves, "--sleep", 0.3, until=100)
    try:
        wait_for_save(saves, process)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    finish(tmp_path / "first", process, command)
    newest = saved_steps(saves)[-1]
    assert newest < UNTIL, "it was killed too late"
    assert_rest(run(tmp_path / "second", saves), whole("fsdp"), newest + 1)


def test_workers_that_all_die_go_on_from_the_newest_save(tmp_path, whole):
    inject = [f"kill:rank={rank},step=10,phase=before_vote" for rank in range(2)]
    job = run(tmp_path / "job", tmp_path / "saves", "--sleep", 0.5, kind="ddp", inject=inject)
    assert job.exit_code == 0, job.explain()
    (restart,) = job.events("restart")
    assert restart["lost_steps"] < 9, job.explain()  # step 4 at least was saved by then
    assert [line["loss"] for line in job.metrics] == [line["loss"] for line in whole("ddp").metrics], job.explain()
    assert job.finals()[0]["final"] == whole("ddp").finals()[0]["final"]


def test_pipeline_stages_go_on_from_their_last_step_and_equal_names_are_refused(tmp_path):
    saves = tmp_path / "saves"
    reference = run(tmp_path / "whole", tmp_path / "whole-saves", kind="pp", world=4)
    assert run(tmp_path / "first", saves, kind="pp", world=4, until=6).exit_code == 0
    assert_rest(run(tmp_path / "second", saves, kind="pp", world=4), reference, 7)
    job = run(tmp_path / "other", tmp_path / "none", "--equal-names", kind="pp", world=4, until=5)
    assert job.exit_code == 0, job.explain()
    assert "rank 0 and rank 2 hold different values of 'model.blocks.0" in job.output, job.explain()
    assert not saved_steps(tmp_path / "none")


@pytest.mark.long
def test_replicated_state_in_memory_survives_that_all_workers_die(tmp_path, whole):
    inject = [f"kill:rank={rank},step=7,phase=before_vote" for rank in range(2)]
    job = run(tmp_path / "job", tmp_path / "saves", "--in-memory", kind="ddp", inject=inject)
    assert not job.events("restart"), job.explain()
    assert_rest(job, whole("ddp"), 1)


def test_another_number_of_ranks_goes_on_and_torch_alone_reads_it(tmp_path, whole):
    saves = tmp_path / "saves"
    assert run(tmp_path / "first", saves, until=6).exit_code == 0
    job = run(tmp_path / "second", saves, world=4)
    assert job.exit_code == 0, job.explain()
    losses = [line["loss"] for line in whole("fsdp").metrics[6:]]
    assert [line["step"] for line in job.metrics] == list(range(7, UNTIL + 1))
    # Dropout and BatchNorm depend on the rank, so the losses are near and not equal.
    assert [line["loss"] for line in job.metrics] == pytest.approx(losses, rel=0.2), job.explain()
    loaded = {"model": {"first.weight": torch.zeros(48, 16)}, "optimizer": {"state": {"first.weight": {}}}}
    loaded["optimizer"]["state"]["first.weight"]["exp_avg"] = torch.zeros(48, 16)
    dcp.load(loaded, checkpoint_id=str(saves / "step-000000000006"), no_dist=True)
    assert loaded["model"]["first.weight"].abs().sum() > 0
    assert loaded["optimizer"]["state"]["first.weight"]["exp_avg"].abs().sum() > 0


@pytest.mark.long
def test_a_place_that_is_gone_costs_no_step_and_is_told(tmp_path, whole):
    saves = tmp_path / "saves"
    process, command = begin(tmp_path / "job", saves, "--sleep", 0.2)
    wait_for_steps(tmp_path / "job", 5)
    shutil.rmtree(saves, ignore_errors=True)
    saves.write_text("no folder any more")
    job = finish(tmp_path / "job", process, command)
    assert_rest(job, whole("fsdp"), 1)
    assert job.events("not_saved"), job.explain()
    assert "could not be saved" in job.output
    saves.unlink()


def test_a_place_that_another_job_uses_is_refused_and_the_first_one_named(tmp_path):
    saves = tmp_path / "saves"
    process, command = begin(tmp_path / "first", saves, "--sleep", 0.3, until=40)
    try:
        wait_for_steps(tmp_path / "first", 6)
        job = run(tmp_path / "second", saves)
        assert job.exit_code == 1, job.explain()
        assert "run.checkpoint: " in job.output, job.explain()
        assert not job.metrics, job.explain()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    finish(tmp_path / "first", process, command)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["ddp", "fsdp", "tp", "pp", "zero"])
@pytest.mark.parametrize("phase", ["forward", "before_vote", "update", "between"])
def test_kills_while_it_saves_every_step(tmp_path, kind, phase):
    world = 4 if kind in ("tp", "pp") else 2
    reference = run(tmp_path / "whole", tmp_path / "whole-saves", kind=kind, world=world)
    saves = tmp_path / "saves"
    inject = [f"kill:rank={rank},step={3 + 4 * rank},phase={phase}" for rank in range(2)]
    job = run(tmp_path / "job", saves, "--every", 1, "--keep", 100, kind=kind, world=world, inject=inject)
    assert_rest(job, reference, 1)
    assert saved_steps(saves)[-1] == UNTIL
    assert_rest(run(tmp_path / "again", saves, kind=kind, world=world, until=UNTIL), reference, UNTIL + 1)
    done = subprocess.run([KEEPSTEP, "ckpt", "verify", str(saves)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
