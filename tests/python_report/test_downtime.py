"""The one definition of downtime that all tools are measured by, and how samples and processes are watched."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from keepstep.bench.demo.sample_ids import check_samples, committed_samples
from keepstep.bench.harness.commits import CommitReader, RankCommit, first_new_step, median_step_s, redone_steps
from keepstep.bench.harness.keepstep_job import Membership
from keepstep.bench.harness.processes import Processes, descendants
from keepstep.bench.harness.waiting import wait_for
from keepstep.bench.harness.workload import LEAST_STEP_S, Workload
from keepstep.bench.recovery.keepstep_recovery import bitwise_equal


def commit(step: int, rank: int, mono: float, generation: int = 1, ranks: int = 2) -> RankCommit:
    return RankCommit(pid=100 * generation + rank, step=step, rank=rank, generation=generation, ranks=ranks, mono=mono)


def test_downtime_ends_when_the_last_rank_has_a_step_nobody_had_before() -> None:
    commits = [commit(1, 0, 1.0), commit(1, 1, 1.0), commit(2, 0, 2.0)]  # rank 1 dies at 2.1, before it has step 2
    assert first_new_step(commits, 2.1, 2) is None
    commits += [commit(2, 0, 2.2), commit(2, 1, 2.4, 2), commit(3, 0, 3.0, 2)]
    assert first_new_step(commits, 2.1, 2) is None
    commits += [commit(3, 1, 3.2, 2)]
    new = first_new_step(commits, 2.1, 2)
    assert new is not None
    assert (new.step, new.mono) == (3, 3.2)


def test_survivors_alone_are_found_before_the_full_world() -> None:
    commits = [commit(1, r, 1.0) for r in range(3)] + [commit(2, 0, 2.0), commit(2, 1, 2.1), commit(3, 2, 9.0)]
    new = first_new_step(commits, 1.5, 2)
    assert new is not None
    assert new.mono == 2.1


def test_steps_that_a_rank_computed_twice_are_lost_steps() -> None:
    commits = [commit(step, rank, float(step)) for step in range(1, 6) for rank in (0, 1)]
    assert redone_steps(commits, 5.5) == 0
    commits += [commit(step, rank, 10.0 + step, 2) for step in range(3, 8) for rank in (0, 1)]
    assert redone_steps(commits, 5.5) == 3


def test_a_survivor_that_logs_the_same_step_a_little_later_lost_nothing() -> None:
    assert redone_steps([commit(5, 0, 1.0), commit(5, 1, 1.2), commit(6, 0, 2.0), commit(6, 1, 2.0)], 1.1) == 0


def test_the_median_step_leaves_out_starts_and_faults() -> None:
    commits = [commit(1, 0, 0.0), commit(2, 0, 5.0), commit(3, 0, 5.3), commit(4, 0, 9.0), commit(5, 0, 9.3)]
    assert median_step_s(commits, 1, [6.0]) == pytest.approx(0.3)


def test_a_cut_off_commit_line_waits_for_its_rest(tmp_path: Path) -> None:
    reader = CommitReader(tmp_path)
    file = tmp_path / "77.commits"
    file.write_text("1 0 1 4 10.5\n2 0 1 4 1")
    assert [c.step for c in reader.poll()] == [1]
    file.write_text("1 0 1 4 10.5\n2 0 1 4 11.5\n")
    assert [(c.pid, c.step, c.mono) for c in reader.poll()] == [(77, 2, 11.5)]


def test_short_steps_get_a_larger_batch_that_all_ranks_can_share() -> None:
    assert Workload().longer(0.4) == Workload()
    longer = Workload().longer(0.05)
    assert longer.global_batch % longer.world_size == 0
    assert longer.global_batch / Workload().global_batch * 0.05 >= LEAST_STEP_S


def test_a_job_is_ready_for_a_kill_only_with_a_parked_spare_and_a_step_of_all_ranks() -> None:
    job = Membership()
    for line in [
        {"event": "job_started", "world_size": 2, "spares": 1},
        *({"event": "spawned", "worker": worker, "pid": 70 + worker} for worker in range(3)),
        *({"event": "parked", "worker": worker, "pid": 70 + worker} for worker in range(3)),
        {"event": "generation_prepared", "generation": 1, "workers": [0, 1]},
    ]:
        job.read(line)
    assert not job.ready()
    job.read({"event": "first_commit", "generation": 1, "step": 1})
    assert job.ready()
    assert job.pid_of(1) == 71
    job.read({"event": "fault_detected", "generation": 1, "worker": 1, "rank": 1})
    job.read({"event": "generation_prepared", "generation": 2, "workers": [0, 2]})
    job.read({"event": "first_commit", "generation": 2, "step": 9})
    assert not job.ready()  # the spare has a rank now, and no new one is parked
    job.read({"event": "parked", "worker": 3, "pid": 73})
    assert job.ready()
    assert job.pid_of(1) == 72


def test_a_node_may_be_killed_once_the_next_spare_node_has_parked_its_workers() -> None:
    job = Membership(nodes=[0, 1], on_spare_nodes=1)
    for line in [
        {"event": "job_started", "world_size": 2, "spares": 0},
        *({"event": "parked", "worker": worker, "pid": 70 + worker} for worker in range(2)),
        {"event": "generation_prepared", "generation": 1, "workers": [0, 1]},
        {"event": "first_commit", "generation": 1, "step": 1},
    ]:
        job.read(line)
    assert not job.ready()
    job.read({"event": "parked", "worker": 2, "pid": 72})
    assert job.ready()
    job.read({"event": "fault_detected", "generation": 1, "kind": "node", "lost_node": 1, "workers": [1], "ranks": [1]})
    assert not job.ready()
    job.read({"event": "node_replaced", "generation": 1, "lost_node": 1, "by_node": 2, "ranks": [1]})
    assert job.nodes == [0, 2]
    job.read({"event": "generation_prepared", "generation": 2, "workers": [0, 2]})
    job.read({"event": "first_commit", "generation": 2, "step": 9})
    assert not job.ready()
    job.read({"event": "parked", "worker": 3, "pid": 73})
    assert job.ready()
    job.read({"event": "fault_detected", "generation": 2, "kind": "node", "lost_node": 1, "workers": [3], "ranks": []})
    assert not job.ready()  # the spare node is gone, but training goes on
    assert job.settled


def write_losses(run: Path, values: list[float]) -> None:
    run.mkdir()
    lines = [json.dumps({"step": step, "loss": loss}) for step, loss in enumerate(values, 1)]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def test_losses_are_equal_only_if_every_bit_of_every_step_is(tmp_path: Path) -> None:
    one, same, other, short = (tmp_path / name for name in ("one", "same", "other", "short"))
    write_losses(one, [5.0, 0.1])
    write_losses(same, [5.0, 0.1])
    write_losses(other, [5.0, math.nextafter(0.1, 1.0)])
    write_losses(short, [5.0])
    assert bitwise_equal(one, same, 2)
    assert not bitwise_equal(one, other, 2)
    assert not bitwise_equal(one, short, 2)
    assert not bitwise_equal(one, same, 0)


def write_ids(folder: Path, process: int, lines: list[tuple[int, int, int, list[int]]]) -> None:
    folder.mkdir(exist_ok=True)
    names = ("step", "generation", "rank", "ids")
    text = "".join(json.dumps(dict(zip(names, line, strict=True))) + "\n" for line in lines)
    (folder / f"{process}.jsonl").write_text(text)


def test_a_redone_step_counts_once_and_a_skipped_sample_is_found(tmp_path: Path) -> None:
    peaceful, disturbed = tmp_path / "a", tmp_path / "b"
    write_ids(peaceful, 1, [(1, 1, 0, [1]), (1, 1, 1, [2]), (2, 1, 0, [3]), (2, 1, 1, [4])])
    write_ids(disturbed, 1, [(1, 1, 0, [1]), (2, 1, 0, [3]), (2, 2, 0, [3])])
    write_ids(disturbed, 2, [(1, 1, 1, [2]), (2, 1, 1, [4])])
    write_ids(disturbed, 3, [(2, 2, 1, [4])])
    assert committed_samples(disturbed) == {1: [1, 2], 2: [3, 4]}
    check = check_samples(disturbed, peaceful, until=2, global_batch=2)
    assert (check.repeated, check.skipped) == (0, 0)
    write_ids(disturbed, 3, [(2, 2, 1, [1])])
    check = check_samples(disturbed, peaceful, until=2, global_batch=2)
    assert (check.repeated, check.skipped) == (1, 1)


def test_a_killed_job_takes_everything_below_it_along(tmp_path: Path) -> None:
    sleeper = "import subprocess, time; s = subprocess.Popen(['sleep', '1000'], start_new_session=True); "
    sleeper += "print(s.pid, flush=True); time.sleep(1000)"  # it must not reap what is killed before it
    with Processes() as processes:
        job = processes.start([sys.executable, "-c", sleeper], os.environ, tmp_path / "log")
        below = int(wait_for("output", job, 20.0, lambda: job.log.read_text() or None))
        job.kill()
        assert job.process.returncode == -signal.SIGKILL
        _, status = os.waitpid(below, 0)  # orphans become children of this process
        assert os.WTERMSIG(status) == signal.SIGKILL


def test_no_process_outlives_a_benchmark_even_one_in_a_session_of_its_own(tmp_path: Path) -> None:
    before = set(descendants(os.getpid()))
    grandchild = "import os, subprocess, sys, time; subprocess.Popen(['sleep', '1000'], start_new_session=True); "
    grandchild += "print('up', flush=True); time.sleep(1000)"
    with Processes() as processes:
        job = processes.start([sys.executable, "-c", grandchild], os.environ, tmp_path / "log")
        wait_for("output", job, 20.0, lambda: "up" in job.log.read_text() or None)
        started = time.monotonic()
        assert len(set(descendants(os.getpid())) - before) == 2
    assert set(descendants(os.getpid())) <= before
    assert time.monotonic() - started < 20


def test_ctrl_c_pressed_again_while_jobs_end_leaves_no_process_behind(tmp_path: Path) -> None:
    """The job itself sends the second one, once it is asked to end."""
    stubborn = "trap 'kill -INT $PPID; sleep 2; exit' INT; echo up; while :; do sleep 0.1; done"
    before = set(descendants(os.getpid()))
    with pytest.raises(KeyboardInterrupt), Processes() as processes:
        job = processes.start(["sh", "-c", stubborn], os.environ, tmp_path / "log")
        wait_for("output", job, 20.0, lambda: "up" in job.log.read_text() or None)
        raise KeyboardInterrupt
    assert set(descendants(os.getpid())) <= before
