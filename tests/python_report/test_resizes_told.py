"""What the report says about changes of an elastic job's size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from journals import RunWriter, finish

from keepstep.report.__main__ import main
from keepstep.report.analysis import analyse


def elastic_run(directory: Path) -> RunWriter:
    """Replicas of two ranks: 2 after step 5, which was committed at 2.0 s; step 6 comes at 2.35 s."""
    run = RunWriter(directory, world_size=2)
    run.prepare(0.5, 0, [], "start")
    run.commits(1, 5, 1.2)
    fields = {"from": 1, "to": 2, "ranks": 4, "left": [], "joined": [2, 3]}
    run.write(2.05, "resized", "2 have been ready for 30 s", **fields)
    run.commits(6, 10, 2.35)
    return run


def test_a_change_is_told_with_its_ranks_and_its_pause(tmp_path: Path) -> None:
    run = elastic_run(tmp_path)
    run.write(3.2, "resized", "nothing follows", **{"from": 2, "to": 1, "ranks": 2})
    finish(run, 3.3)
    grown, shrunk = analyse(tmp_path).resizes
    assert (grown.before, grown.now, grown.step, grown.because) == (2, 4, 5, "2 have been ready for 30 s")
    assert grown.pause_s == pytest.approx(0.15)
    assert (shrunk.before, shrunk.now, shrunk.step, shrunk.pause_s) == (4, 2, 10, None)


def test_changes_are_in_all_forms_of_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finish(elastic_run(tmp_path), 3.3)
    assert main([str(tmp_path), "--html", str(tmp_path / "page.html")]) == 0
    assert "2 -> 4" in capsys.readouterr().out
    assert "2 → 4" in (tmp_path / "page.html").read_text()
    assert main([str(tmp_path), "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["resizes"]
    assert (told["ranks_before"], told["ranks"], told["step"], told["pause_ms"]) == (2, 4, 5, pytest.approx(150))


def test_lines_that_nobody_wrote_are_left_out(tmp_path: Path) -> None:
    run = elastic_run(tmp_path)
    run.write(3.2, "resized", **{"from": 2, "to": 0, "ranks": 2})
    run.write(3.2, "resized", "no numbers")
    finish(run, 3.3)
    assert len(analyse(tmp_path).resizes) == 1
