"""What the report says about recoveries, on journals whose numbers were made by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from journals import RunWriter, finish, run_with_one_kill

from keepstep.report.analysis import analyse
from keepstep.report.recovery import PHASES
from keepstep.report.words import who


def test_the_phases_of_a_replaced_rank_add_up_to_its_recovery(tmp_path: Path) -> None:
    finish(run_with_one_kill(tmp_path), 5.5)
    (recovery,) = analyse(tmp_path).recoveries
    expected_ms = [1, 3, 16, 10, 20, 300]
    phases = recovery.phases_s()
    assert [phases[phase] for phase in PHASES] == pytest.approx([ms / 1000 for ms in expected_ms])
    assert recovery.total_s == pytest.approx(0.350)
    assert recovery.downtime_s == pytest.approx(0.150)  # less one step of 200 ms
    assert recovery.complete
    assert recovery.lost_steps == 0


def test_the_report_says_who_died_how_and_who_took_over(tmp_path: Path) -> None:
    run_with_one_kill(tmp_path)
    (recovery,) = analyse(tmp_path).recoveries
    (fault,) = recovery.faults
    assert (fault.rank, fault.pid, fault.step, fault.detected_by) == (2, 72, 11, "robust mutex")
    assert fault.how() == "SIGKILL"  # the mutex did not know, the confirmed exit did
    assert recovery.replaced_by == ["spare"]
    assert recovery.newcomers == [2]
    assert (recovery.from_generation, recovery.to_generation) == (1, 2)
    (hydration,) = recovery.hydrations
    assert hydration.bytes == 3000
    assert dict(zip(hydration.sources, hydration.bytes_from, strict=True)) == {0: 1000, 1: 1000, 3: 1000}


def test_a_kill_from_outside_counts_from_the_time_its_author_wrote_down(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.prepare(0.1, 0, [], "start")
    run.write(2.0, "fault_detected", worker=1, rank=1, pid=71, detected_by="pidfd", signal=9, exit_code=0, kind="death")
    (tmp_path / "faults.jsonl").write_text('{"mono": 1001.998, "pid": 71}\n{"mono": 1001.0, "pid": 99}\n')
    (recovery,) = analyse(tmp_path).recoveries
    assert recovery.phases_s()["detect"] == pytest.approx(0.002)
    assert not recovery.complete
    assert recovery.downtime_s is None


def test_a_hang_counts_from_the_last_progress_of_the_rank_that_hung(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.prepare(0.1, 0, [], "start")
    run.write(
        4.0,
        "fault_detected",
        worker=1,
        rank=1,
        pid=71,
        detected_by="hang",
        signal=-1,
        exit_code=0,
        kind="hang",
        idle_s=1.25,
    )
    run.write(4.1, "exit_confirmed", worker=1, pid=71, signal=9, exit_code=0)
    (recovery,) = analyse(tmp_path).recoveries
    assert recovery.phases_s()["detect"] == pytest.approx(1.25)
    assert recovery.faults[0].how() == "a hang"  # not the signal that ended it then


def test_a_second_fault_during_a_recovery_belongs_to_the_same_recovery(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.prepare(0.1, 0, [], "start")
    run.commits(1, 5, 1.0)

    def fault(t: float, rank: int) -> None:
        run.write(
            t, "fault_detected", worker=rank, rank=rank, pid=rank, detected_by="robust mutex", signal=9, kind="death"
        )

    fault(2.0, 1)
    run.write(2.01, "verdict", step=6, version=5, verdict="redo")
    run.prepare(2.02, 5, [1], "spare")
    fault(2.03, 3)
    run.write(2.05, "verdict", step=6, version=5, verdict="redo")
    run.prepare(2.06, 5, [1, 3], "zygote")
    run.write(2.07, "rank_ready", rank=0, worker=0, state="clean", version=5)
    run.write(2.08, "activated", version=5, sources=[0, 2], targets=[1, 3])
    run.write(2.10, "formed", version=5)
    run.write(2.40, "first_commit", step=6)
    (recovery,) = analyse(tmp_path).recoveries
    assert [fault.rank for fault in recovery.faults] == [1, 3]
    assert recovery.replaced_by == ["spare", "zygote"]
    assert recovery.phases_s()["decide"] == pytest.approx(0.05)
    assert recovery.total_s == pytest.approx(0.40)


def test_a_spare_that_dies_is_no_recovery(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.prepare(0.1, 0, [], "start")
    run.write(2.0, "fault_detected", worker=4, pid=74, detected_by="pidfd", signal=9, exit_code=0, kind="death")
    analysis = analyse(tmp_path)
    assert analysis.recoveries == []
    assert [fault.pid for fault in analysis.spares_lost] == [74]


def test_a_lost_node_is_one_fault_of_all_its_ranks(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.prepare(0.1, 0, [], "start")
    run.commits(1, 5, 1.0)
    lost = {"lost_node": 1, "detected_by": "connection", "kind": "node"}
    run.write(2.0, "fault_detected", "node 1 is lost", **lost, workers=[2, 3], ranks=[2, 3])
    run.write(2.0, "node_replaced", "node 1 is lost", lost_node=1, by_node=2, ranks=[2, 3])
    run.write(2.01, "verdict", step=6, version=5, verdict="redo")
    run.prepare(2.02, 5, [2, 3], "spare")
    run.write(2.10, "formed", version=5)
    run.write(2.40, "first_commit", step=6)
    moved = {"rank": 3, "bytes": 700, "sources": [0, 1], "bytes_from": [300, 400]}
    other = [{"event": "hydrated", "mono": 1.0, "generation": generation} | moved for generation in (1, 2)]
    (tmp_path / "journal.node2.jsonl").write_text("".join(json.dumps(line) + "\n" for line in other))
    (tmp_path / "faults.jsonl").write_text('{"mono": 1001.997, "node": 1}\n{"mono": 1001.999, "node": 2}\n')
    (recovery,) = analyse(tmp_path).recoveries
    (fault,) = recovery.faults
    assert (fault.node, fault.ranks, fault.how()) == (1, [2, 3], "lost")
    assert who(fault) == "node 1 (ranks 2, 3)"
    assert recovery.phases_s()["detect"] == pytest.approx(0.003)
    assert recovery.total_s == pytest.approx(0.403)
    assert recovery.bytes_moved == 700  # the other line is of the job's start


def test_a_spare_node_that_is_lost_is_no_recovery(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.prepare(0.1, 0, [], "start")
    run.write(2.0, "fault_detected", lost_node=2, detected_by="connection", kind="node", workers=[4, 5], ranks=[])
    analysis = analyse(tmp_path)
    assert analysis.recoveries == []
    assert [who(fault) for fault in analysis.spares_lost] == ["node 2"]


def test_steps_that_are_done_again_from_copies_are_counted(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.prepare(0.1, 0, [], "start")
    run.commits(1, 5, 1.0)
    run.write(2.0, "fault_detected", worker=1, rank=1, pid=71, detected_by="pidfd", signal=9, exit_code=0, kind="death")
    run.write(2.01, "verdict", "version 2 is whole", step=3, version=2, verdict="redo", redone_steps=3)
    run.prepare(2.5, 2, [0, 2, 3, 4], "replace")
    run.write(2.6, "activated", version=2, sources=[], targets=[])
    run.write(2.6, "formed", version=2)
    run.write(3.0, "first_commit", step=3)
    run.commits(3, 5, 3.0)
    analysis = analyse(tmp_path)
    assert (analysis.totals.lost_steps, analysis.totals.redone_steps) == (0, 3)
    assert [commit.step for commit in analysis.commits] == [1, 2, 3, 4, 5]


def test_a_restart_counts_the_steps_it_lost(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.prepare(0.1, 0, [], "start")
    run.commits(1, 5, 1.0)
    run.write(2.0, "fault_detected", worker=1, rank=1, pid=71, detected_by="pidfd", signal=9, exit_code=0, kind="death")
    run.write(2.01, "rung", rung="restart")
    run.write(2.02, "restart", "no clean copy is left", lost_steps=5)
    run.prepare(2.5, 0, [0, 1, 2, 3], "restart")
    run.write(2.6, "activated", version=0, sources=[], targets=[])
    run.write(2.6, "formed", version=0)
    run.write(3.0, "first_commit", step=1)
    run.commits(1, 5, 3.0)
    analysis = analyse(tmp_path)
    assert analysis.totals.lost_steps == 5
    assert analysis.recoveries[0].rungs == ["restart"]
    assert [commit.step for commit in analysis.commits] == [1, 2, 3, 4, 5]


def test_steps_of_a_save_that_was_completed_after_all_ranks_had_died_are_not_lost(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.prepare(0.1, 0, [], "start")
    run.commits(1, 5, 1.0)
    run.write(2.0, "fault_detected", worker=1, rank=1, pid=71, detected_by="pidfd", signal=9, exit_code=0, kind="death")
    run.write(2.01, "rung", rung="restart")
    run.write(2.02, "restart", "no clean copy is left", lost_steps=5)
    run.write(2.1, "orphan_save", "the job goes on from there", version=4, regained_steps=4)
    run.prepare(2.5, 4, [0, 1, 2, 3], "restart")
    run.write(2.6, "activated", version=4, sources=[], targets=[])
    run.write(2.6, "formed", version=4)
    run.write(2.7, "orphan_save", "it does not count", version=5)
    run.write(3.0, "first_commit", step=5)
    assert analyse(tmp_path).totals.lost_steps == 1


def test_a_restart_with_state_is_one_recovery_of_two_halves_and_loses_no_step(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.prepare(0.1, 0, [], "start")
    run.commits(1, 5, 1.0)
    run.write(2.0, "fault_detected", worker=1, rank=1, pid=71, detected_by="pidfd", signal=9, exit_code=0, kind="death")
    run.write(2.01, "rung", rung="restart_with_state")
    run.write(2.02, "verdict", "rank 0 had not voted on step 6", step=6, version=5, verdict="redo")
    run.write(2.02, "restart_with_state", "too many faults", version=5, restarted=[2, 3], later=[0])
    run.prepare(2.3, 5, [1, 2, 3], "zygote")
    run.write(2.4, "activated", version=5, sources=[0], targets=[1, 2, 3])
    run.write(2.5, "formed", version=5)
    run.write(2.51, "verdict", "rank 0 had not voted on step 6", step=6, version=5, verdict="redo")
    run.write(2.51, "restart_with_state", "it goes on", version=5, restarted=[0], later=[])
    run.prepare(2.7, 5, [0], "zygote")
    run.write(2.8, "activated", version=5, sources=[1, 2, 3], targets=[0])
    run.write(2.9, "formed", version=5)
    run.write(3.0, "first_commit", step=6)
    run.commits(6, 6, 3.0)
    analysis = analyse(tmp_path)
    (recovery,) = analysis.recoveries
    assert recovery.rungs == ["restart_with_state"]
    assert recovery.lost_steps == 0 and analysis.totals.lost_steps == 0
    assert recovery.complete and recovery.marks.formed == pytest.approx(run.offset + 2.9)


def test_goodput_and_money_are_what_one_gets_by_hand(tmp_path: Path) -> None:
    finish(run_with_one_kill(tmp_path), 5.5)
    totals = analyse(tmp_path, price_per_hour=3600.0).totals
    assert totals.wall_s == pytest.approx(5.5)
    assert totals.useful_s == pytest.approx(20 * 0.2)
    assert totals.goodput == pytest.approx(4.0 / 5.5)
    assert totals.starting_s == pytest.approx(1.0)
    assert totals.recovering_s == pytest.approx(0.150)
    assert totals.lost_rank_seconds == pytest.approx(0.6)
    assert totals.lost_money == pytest.approx(0.6)
    assert totals.bytes_moved == 3000


def test_where_votes_differed_the_report_names_the_rank_that_was_wrong(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.prepare(0.1, 0, [], "start")
    run.write(4.0, "fault_detected", detected_by="vote", signal=0, exit_code=0, kind="digests", step=20)
    (recovery,) = analyse(tmp_path).recoveries
    assert [(who(fault), fault.how()) for fault in recovery.faults] == [("all ranks", "digests that differ")]
    run.write(4.001, "corruption", step=20, what="gradients", ranks=[2], workers=[5], nodes=[0])
    (recovery,) = analyse(tmp_path).recoveries
    assert [(who(fault), fault.how(), fault.step) for fault in recovery.faults] == [("rank 2", "silent corruption", 20)]
