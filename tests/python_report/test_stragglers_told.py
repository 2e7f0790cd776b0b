"""What the report says about slow ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from journals import RunWriter, finish, run_with_one_kill

from keepstep.report.__main__ import main
from keepstep.report.analysis import analyse
from keepstep.report.words import limped


def slow(run: RunWriter, t: float, rank: int, slow: bool = True) -> None:
    times = {"computed_s": 0.2, "others_s": 0.1, "step_s": 0.21, "share": 0.4}
    run.write(t, "straggler", "because", rank=rank, slow_node=1, host="node-b", slow=slow, **times)


def test_a_slow_rank_is_told_with_its_time_and_what_was_lost(tmp_path: Path) -> None:
    run = run_with_one_kill(tmp_path)
    slow(run, 1.0, 3)
    slow(run, 2.0, 2)
    slow(run, 3.5, 3, slow=False)
    finish(run, 5.5)
    first, second = analyse(tmp_path).stragglers
    assert (first.rank, first.node, first.host, first.from_t, first.until_t) == (3, 1, "node-b", 1.0, 3.5)
    assert first.lost_s == pytest.approx(1.0)
    assert (second.rank, second.until_t) == (2, None)
    assert "rank 3 on node 1 (node-b) from 1.0 s to 3.5 s" in limped(first)
    assert "to the end" in limped(second)


def test_slow_ranks_are_in_all_forms_of_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_with_one_kill(tmp_path)
    slow(run, 1.0, 3)
    finish(run, 5.5)
    assert main([str(tmp_path), "--html", str(tmp_path / "page.html")]) == 0
    assert "rank 3 on node 1" in " ".join(capsys.readouterr().out.split())
    assert "rank 3 on node 1" in (tmp_path / "page.html").read_text()
    assert main([str(tmp_path), "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["stragglers"]
    assert (told["rank"], told["until_s"], told["computed_ms"]) == (3, None, 200)


def test_lines_of_stragglers_that_nobody_wrote_are_left_out(tmp_path: Path) -> None:
    run = run_with_one_kill(tmp_path)
    run.write(1.0, "straggler", slow=True)
    slow(run, 2.0, 3, slow=False)
    finish(run, 5.5)
    assert analyse(tmp_path).stragglers == []
