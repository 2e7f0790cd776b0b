"""Saves that outlive the ranks that they are of: the disk takes its time, ranks die meanwhile, and that very version is
completed. It does not outlive the job."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from held import Held

from elastic_jobs import sharded
from fsdp2 import needs_fsdp2
from harness import JOBS, KEEPSTEP, json_lines
from several_nodes import assert_nothing_is_left, finish_nodes, kill, start_nodes
from test_run_checkpoint import Trouble, run, saved_steps, verify


@pytest.fixture
def held(tmp_path, monkeypatch):
    """The first save: everything is handed over, and it is not complete before it is let go."""
    slow = Held(tmp_path / "held", "/.metadata")
    for name, value in slow.environment.items():
        monkeypatch.setenv(name, value)
    yield slow
    slow.close()


@pytest.fixture
def job(tmp_path, held):
    jobs = []

    def start_it(kind, extra=(), **how):
        kept = ["--keep", 1000]  # by default the three newest, and a few may follow the one that is compared
        jobs.append(Trouble(tmp_path / "job", tmp_path / "saves", kind=kind, extra=[*kept, *extra], **how))
        return jobs[-1]

    yield start_it
    for each in jobs:
        each.end()


def save_in(held):
    """Which process is held, and the version that it saves."""
    ((pid, name),) = held.wait()
    return pid, int(name.parent.name.removeprefix("step-"))


def pid_of(job, rank):
    return pid_in(job.folder, rank)


def pid_in(folder, rank):
    notes = [note for path in folder.glob("*.jsonl") for note in json_lines(path)]
    entries = [note for note in notes if note.get("rank") == rank and "entry" in note]
    return max(entries, key=lambda note: note["generation"])["pid"]


def assert_same_as_undisturbed(tmp_path, kind, saves, version, monkeypatch):
    monkeypatch.delenv("LD_PRELOAD")
    reference = run(tmp_path / "reference", tmp_path / "reference-saves", kind=kind, until=version)
    assert reference.exit_code == 0, reference.explain()
    command = [KEEPSTEP, "ckpt", "diff", f"{tmp_path / 'reference-saves'}@{version}", f"{saves}@{version}"]
    compared = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert compared.returncode == 0, compared.stdout + compared.stderr


@pytest.mark.parametrize(
    ("kind", "ranks"),
    [
        ("ddp", [0]),
        pytest.param("fsdp", [1], marks=pytest.mark.long),
        pytest.param("fsdp", [0], marks=pytest.mark.long),
        pytest.param("zero", [0], marks=pytest.mark.long),
        pytest.param("ddp", [1], marks=pytest.mark.long),
        pytest.param("fsdp", [0, 1], marks=pytest.mark.long),
    ],
)
def test_a_save_is_completed_though_its_ranks_die(tmp_path, job, held, monkeypatch, kind, ranks):
    running = job(kind, spares=1)
    saves = tmp_path / "saves"
    writer, version = save_in(held)
    dead = [pid_of(running, rank) for rank in ranks]
    for pid in dead:
        os.kill(pid, signal.SIGKILL)
    running.wait("a new process", lambda: all(pid_of(running, rank) not in dead for rank in ranks))
    running.wait_more_steps(2)
    assert not saved_steps(saves)
    held.let_go()
    running.wait("that save", lambda: running.events("saved", version=version))
    running.wait_saved(after=version)
    ended = running.stop()
    assert not ended.events("not_saved"), ended.explain()
    assert not ended.events("restart"), ended.explain()
    assert [line["step"] for line in ended.metrics] == list(range(1, len(ended.metrics) + 1)), ended.explain()
    (started,) = ended.events("background_writer_started")
    assert str(writer) in started["because"]
    verify(saves)
    assert_same_as_undisturbed(tmp_path, kind, saves, version, monkeypatch)
    assert_nothing_is_left(str(running.folder))


def state_of(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "gone"


def kill_all_ranks(job):
    """Seen by their agent at once: else it may replace the first, and miss the other only when that one is ready."""
    agent = job.process.pid
    os.kill(agent, signal.SIGSTOP)
    job.wait("its agent to stop", lambda: state_of(agent) == "T")
    dead = [pid_of(job, rank) for rank in range(2)]
    for pid in dead:
        os.kill(pid, signal.SIGKILL)
    job.wait("their end", lambda: all(state_of(pid) in ("Z", "X", "gone") for pid in dead))
    os.kill(agent, signal.SIGCONT)
    job.wait("the end of all ranks", lambda: job.events("restart"))


@pytest.mark.long
def test_a_job_goes_on_from_a_save_that_is_completed_while_it_has_no_ranks(tmp_path, job, held, monkeypatch):
    gate = tmp_path / "gate"
    running = job("ddp", extra=["--gate", gate])
    _, version = save_in(held)
    gate.touch()  # nobody who comes begins
    kill_all_ranks(running)
    assert not saved_steps(tmp_path / "saves")
    held.let_go()
    (found,) = running.wait("that save", lambda: running.events("orphan_save"))
    assert found["version"] == found["regained_steps"] == version
    gate.unlink()
    running.wait("its end to be told", lambda: running.events("saved", version=version))
    running.wait_saved(after=version)
    ended = running.stop()
    assert [each["version"] for each in ended.events("activated")] == [0, version], ended.explain()
    assert not ended.events("not_saved"), ended.explain()
    verify(tmp_path / "saves")
    assert_same_as_undisturbed(tmp_path, "ddp", tmp_path / "saves", version, monkeypatch)


@pytest.mark.long
def test_a_save_that_is_completed_after_the_job_began_again_without_it_does_not_count(tmp_path, job, held):
    running = job("ddp", spares=2)
    held.wait()
    kill_all_ranks(running)
    began = running.wait("the next start", lambda: running.events("generation_prepared", replaced_by="restart"))
    assert began[0]["version"] == 0
    held.let_go()
    running.wait_saved()
    ended = running.stop()
    assert [each["version"] for each in ended.events("activated")] == [0, 0], ended.explain()
    assert all(each["generation"] == began[0]["generation"] for each in ended.events("saved")), ended.explain()
    assert not [each for each in ended.events("orphan_save") if "regained_steps" in each], ended.explain()
    steps = [line["step"] for line in ended.metrics]
    assert steps[-1] == saved_steps(tmp_path / "saves")[-1] and set(steps) == set(range(1, steps[-1] + 1))
    verify(tmp_path / "saves")


def test_the_process_that_writes_ends_with_its_agent_in_the_middle_of_a_save(tmp_path, job, held):
    running = job("ddp")
    held.wait()
    os.kill(running.process.pid, signal.SIGKILL)
    running.process.wait()
    assert_nothing_is_left(str(tmp_path / "job"))
    assert_nothing_is_left(str(held.folder))
    assert not saved_steps(tmp_path / "saves")


@needs_fsdp2
def test_another_process_writes_when_the_first_one_is_killed(tmp_path, job, held):
    running = job("fsdp")
    writer, version = save_in(held)
    os.kill(writer, signal.SIGKILL)
    missed = running.wait("a save that fails", lambda: running.events("not_saved"))[0]
    assert missed["step"] == version and "background_writer_ended" in missed["because"]
    held.let_go()
    running.wait_saved(after=version)
    ended = running.stop()
    assert len(ended.events("background_writer_started")) == 2
    assert "signal 9" in ended.events("background_writer_ended")[0]["because"]
    assert [line["step"] for line in ended.metrics] == list(range(1, len(ended.metrics) + 1)), ended.explain()
    verify(tmp_path / "saves")


@pytest.mark.long
@pytest.mark.parametrize("killed", [0, 1])
def test_a_save_of_two_nodes_is_completed_though_a_rank_dies(tmp_path, held, killed):
    """Rank 1 is on the other node: how its file is, comes through the agents."""
    folder, saves = tmp_path / "job", tmp_path / "saves"
    nodes = start_nodes(
        folder, JOBS / "sharded.py", "--out", folder, "--until", 1_000_000, "--sleep", 0.05, "--every", 2,
        "--durable", saves, world=1,
    )  # fmt: skip

    def events(name, **wanted):
        found = [line for line in json_lines(folder / "journal" / "journal.jsonl") if line["event"] == name]
        return [line for line in found if all(line[key] == value for key, value in wanted.items())]

    try:
        nodes[0].wait_for(lambda: list(held.folder.glob("reached-*")), "file that is held")
        _, version = save_in(held)
        dead = pid_in(folder, killed)
        os.kill(dead, signal.SIGKILL)
        nodes[0].wait_for(lambda: pid_in(folder, killed) != dead, "new process")
        assert not saved_steps(saves)
        held.let_go()
        nodes[0].wait_for(lambda: events("saved", version=version), "save that was held")
        for node in nodes:
            os.kill(node.process.pid, signal.SIGUSR1)
        ended = finish_nodes(nodes)
    finally:
        for node in nodes:
            kill(node)
    assert not ended.events("not_saved"), ended.explain()
    verify(saves)
    assert_nothing_is_left(str(folder))


@pytest.mark.long
def test_saves_of_a_job_whose_ranks_come_and_go_are_whole(tmp_path):
    saves = tmp_path / "saves"
    with sharded(tmp_path / "elastic", "--durable", saves, "--every", 1, "--keep", 1000) as job:
        job.shrink_grow_and_lose_a_rank()
        job.kill_rank(0)
        job.wait_for_more_steps(2)
        job.leave(1)
        job.wait_for_world(2)
        done = job.stop()
    assert not done.events("not_saved"), done.explain()
    assert saved_steps(saves)[-1] == len(done.metrics), done.explain()
    verify(saves)
    assert_nothing_is_left(str(tmp_path))
