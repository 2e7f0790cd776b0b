"""``run.checkpoint``: a job that ends, or is killed with all it has, goes on from what it saved, with the same bits."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from fsdp2 import needs_fsdp2
from harness import JOBS, KEEPSTEP, finish, json_lines, start
from several_nodes import wait_for_steps

pytestmark = needs_fsdp2

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


@pytest.mark.parametrize(
    ("differs", "here", "there"),
    [
        (
            '{"memory_every_steps": 2, "keep_last": 7}',
            "rank 1 has keep_last=7, memory_every_steps=2",
            "rank 0 has keep_last=3, memory_every_steps=None",
        ),
        pytest.param("null", "rank 1 does not call it", "rank 0 has url=", marks=pytest.mark.long),
        pytest.param(
            '{"every_steps": 3}', "rank 1 has every_steps=3", "rank 0 has every_steps=4", marks=pytest.mark.long
        ),
        pytest.param('{"url": "x"}', "rank 1 has url='x'", "rank 0 has url=", marks=pytest.mark.long),
    ],
)
def test_ranks_that_do_not_save_alike_are_named_before_the_first_step(tmp_path, differs, here, there):
    job = run(tmp_path / "job", tmp_path / "saves", "--differs", 1, differs)
    assert job.exit_code == 1, job.explain()
    assert here in job.output and there in job.output, job.explain()
    assert not job.metrics, job.explain()


@pytest.mark.long
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


@pytest.mark.long
def test_several_places_keep_what_each_is_told_to_and_any_of_them_is_loaded(tmp_path, whole):
    near, far, young = tmp_path / "near", tmp_path / "far", tmp_path / "young"
    more = ["--durable", far, "--durable", young, "--every", 1]
    more += ["--keep", 1, "--keep", 100, "--keep", 100, "--max-age", 0, "--max-age", 0, "--max-age", 0.001]
    ended = run(tmp_path / "first", near, *more, "--sleep", 0.3, kind="ddp", until=6)
    assert ended.exit_code == 0, ended.explain()
    assert saved_steps(near) == saved_steps(young) == [6]
    assert saved_steps(far)[-1] == 6
    assert len(saved_steps(far)) > 1
    (file,) = (near / "step-000000000006").glob("__0_*.distcp")
    file.write_bytes(bytes(file.stat().st_size))
    job = run(tmp_path / "second", near, *more, kind="ddp")
    assert_rest(job, whole("ddp"), 7)
    assert f"it was loaded from {far}" in job.output, job.explain()
    (file,) = (near / "step-000000000012").glob("__0_*.distcp")
    file.write_bytes(bytes(file.stat().st_size))
    alone = run(tmp_path / "third", near, kind="ddp", until=13)
    assert alone.exit_code == 1
    assert "step 12 cannot be loaded" in alone.output, alone.explain()
    assert not alone.events("restart"), alone.explain()


def test_workers_that_all_die_go_on_from_the_newest_save(tmp_path, whole):
    inject = [f"kill:rank={rank},step=10,phase=before_vote" for rank in range(2)]
    job = run(tmp_path / "job", tmp_path / "saves", "--sleep", 0.5, kind="ddp", inject=inject)
    assert job.exit_code == 0, job.explain()
    (restart,) = job.events("restart")
    assert restart["lost_steps"] < 9, job.explain()  # step 4 at least was saved by then
    assert [line["loss"] for line in job.metrics] == [line["loss"] for line in whole("ddp").metrics], job.explain()
    assert job.finals()[0]["final"] == whole("ddp").finals()[0]["final"]


@pytest.mark.long
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


@pytest.mark.long
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


class Trouble:
    """A job that trains without end while its place for checkpoints goes and comes back."""

    def __init__(self, folder, *places, extra=(), **how):
        self.folder = folder
        saves, *more = places
        durable = [part for place in more for part in ("--durable", place)]
        self.process, self.command = begin(
            folder, saves, "--sleep", 0.05, "--every", 2, *durable, *extra, until=1_000_000, **how
        )

    def events(self, name, **wanted):
        found = [line for line in json_lines(self.folder / "journal" / "journal.jsonl") if line["event"] == name]
        return [line for line in found if all(line[key] == value for key, value in wanted.items())]

    def steps(self):
        return len(json_lines(self.folder / "journal" / "metrics.jsonl"))

    def wait(self, what, until, limit_s=150):
        deadline = time.monotonic() + limit_s
        while not (found := until()):
            gone = self.process.poll() is not None or time.monotonic() > deadline
            assert not gone, f"{what} did not happen\n{(self.folder / 'output.txt').read_text()[-4000:]}"
            time.sleep(0.02)
        return found

    def wait_saved(self, after=0, **wanted):
        return self.wait(
            "a save", lambda: [e for e in self.events("saved", **wanted) if e["version"] > after and e["seconds"] > 0]
        )[0]

    def wait_more_steps(self, count=10):
        now = self.steps()
        self.wait(f"{count} more steps", lambda: self.steps() >= now + count)

    def memory(self):
        """Bytes that the ranks' processes have in memory."""
        pids = {note["pid"] for path in self.folder.glob("*.jsonl") for note in json_lines(path) if "entry" in note}
        pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in sorted(pids)]
        return max(pages) * os.sysconf("SC_PAGESIZE")

    def stop(self):
        """It saves its last step and ends."""
        os.kill(self.process.pid, signal.SIGUSR1)
        job = finish(self.folder, self.process, self.command)
        assert job.exit_code == 75, job.explain()
        return job

    def end(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture
def trouble(tmp_path):
    """Starts such a job; it is ended with the test."""
    jobs = []

    def start_it(*places, **how):
        jobs.append(Trouble(tmp_path / f"job-{len(jobs)}", *places, **how))
        return jobs[-1]

    yield start_it
    for job in jobs:
        job.end()


def assert_nothing_lost(job, reference):
    """Each step once, and as far as the reference goes the same losses."""
    assert [line["step"] for line in job.metrics] == list(range(1, len(job.metrics) + 1)), job.explain()
    losses = [line["loss"] for line in reference.metrics]
    assert [line["loss"] for line in job.metrics[: len(losses)]] == losses, job.explain()


def verify(place):
    done = subprocess.run([KEEPSTEP, "ckpt", "verify", str(place), "--all"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def point(link, target):
    """In one step, so that a save sees the one target or the other."""
    fresh = link.with_name("fresh")
    fresh.symlink_to(target)
    fresh.rename(link)


def test_a_place_that_is_gone_costs_no_step_and_catches_up(tmp_path, whole, trouble):
    saves, elsewhere = tmp_path / "saves", tmp_path / "elsewhere"
    elsewhere.mkdir()
    point(saves, elsewhere)
    job = trouble(saves)
    first = job.wait_saved()
    (tmp_path / "file").write_text("no folder any more")
    point(saves, tmp_path / "file")
    missed = job.wait("a save that fails", lambda: job.events("not_saved"))[0]
    assert str(saves) in missed["because"]
    assert missed["because"].endswith("steps behind")
    job.wait_more_steps()
    point(saves, elsewhere)
    back = job.wait_saved(after=max(first["version"], missed["step"]))
    assert back["left_out"] >= 1
    assert missed["step"] in back["left_out_steps"] or back["left_out"] > 16
    ended = job.stop()
    assert_nothing_lost(ended, whole("fsdp"))
    assert "training goes on" in ended.output
    assert saved_steps(saves)[-1] == len(ended.metrics)
    verify(saves)


@pytest.mark.long
@pytest.mark.parametrize("how", ["full", "read-only"])
def test_a_disk_that_is_full_or_read_only_for_a_while(tmp_path, whole, trouble, how):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "keepstep", disk], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        job = trouble(disk / "saves")
        first = job.wait_saved()
        before = job.memory()
        if how == "full":
            with open(disk / "ballast", "wb") as ballast, contextlib.suppress(OSError):
                while True:
                    ballast.write(bytes(65536))
        else:
            subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        job.wait("saves that fail", lambda: len(job.events("not_saved")) >= 2)
        job.wait_more_steps()
        assert job.memory() < before + (8 << 20)
        if how == "full":
            (disk / "ballast").unlink()
        else:
            subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
        back = job.wait_saved(after=job.events("not_saved")[-1]["step"])
        assert back["left_out"] >= 2
        assert back["version"] > first["version"]
        ended = job.stop()
        assert_nothing_lost(ended, whole("fsdp"))
        verify(disk / "saves")
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


@pytest.mark.long
@pytest.mark.parametrize("until", ["save_late", "not_saved"])
def test_s3_that_is_gone_for_a_while_costs_no_step_and_catches_up(
    tmp_path, whole, trouble, versitygw, monkeypatch, until
):
    for name, value in versitygw.environment().items():
        monkeypatch.setenv(name, value)
    place, saves = versitygw.bucket("run"), tmp_path / "saves"
    job = trouble(place, saves)
    job.wait_saved(because=place)
    before = job.memory()
    versitygw.stop()
    try:
        seen = job.wait(until, lambda: [e for e in job.events(until) if place in e["because"]])[-1]
        assert seen["step"] <= job.steps() + 1
        here = job.wait_saved(after=seen["step"], because=str(saves))  # the other place does not wait for it
        assert here["left_out"] < 16
        assert job.memory() < before + (8 << 20)
        shown = subprocess.run([KEEPSTEP, "jobs"], capture_output=True, text=True, check=True).stdout
        assert "are late since step" in shown
    finally:
        versitygw.start()
    back = job.wait_saved(after=seen["step"], because=place)
    assert back["left_out"] >= 1
    ended = job.stop()
    assert_nothing_lost(ended, whole("fsdp"))
    assert "training goes on" in ended.output
    verify(place)
    verify(saves)
    listed = subprocess.run([KEEPSTEP, "ckpt", "ls", place, str(saves)], capture_output=True, text=True, check=True)
    newest = [line.split() for line in listed.stdout.splitlines() if line.split()[:1] == [str(len(ended.metrics))]]
    assert {line[-1] for line in newest} == {place, str(saves)}, listed.stdout


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
