"""The command `keepstep report`: what it prints, draws and refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from journals import RunWriter, finish, run_with_one_kill

from keepstep._terminal import visible
from keepstep.report.__main__ import main
from keepstep.report.analysis import analyse
from keepstep.report.html import loss_svg, page, timeline_svg


def test_the_table_names_the_dead_and_the_spare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finish(run_with_one_kill(tmp_path), 5.5)
    assert main([str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for word in ("spare", "redo", "goodput", "72.7"):
        assert word in printed


def test_failures_that_a_redo_passed_over_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_with_one_kill(tmp_path)
    run.write(5.4, "failure_outlived", "rank 0 failed <twice>", step=2, last_step=4, steps=2, skipped=True)
    finish(run, 5.5)
    assert main([str(tmp_path)]) == 0
    assert "rank 0 failed <twice>" in capsys.readouterr().out
    assert "rank 0 failed &lt;twice&gt;" in page(analyse(tmp_path))
    assert main([str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["job"]["outlived"] == ["rank 0 failed <twice>"]


def test_json_carries_every_phase_in_milliseconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finish(run_with_one_kill(tmp_path), 5.5)
    assert main([str(tmp_path), "--json", "--price-per-hour", "2.5"]) == 0
    report = json.loads(capsys.readouterr().out)
    (recovery,) = report["recoveries"]
    assert recovery["phases_ms"] == pytest.approx(
        {"detect": 1, "decide": 3, "interrupt": 16, "re_form": 10, "hydrate": 20, "first_step": 300}
    )
    assert recovery["hydrated"][0]["bytes_from_rank"] == {"0": 1000, "1": 1000, "3": 1000}
    assert report["job"]["exit_code"] == 0
    assert report["totals"]["lost_steps"] == 0


def test_a_run_without_faults_is_reported_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunWriter(tmp_path)
    run.commits(1, 3, 1.0)
    finish(run, 2.0)
    assert main([str(tmp_path)]) == 0
    assert "nothing failed" in capsys.readouterr().out


def test_a_cut_off_last_line_does_not_hide_the_rest(tmp_path: Path) -> None:
    run_with_one_kill(tmp_path)
    with (tmp_path / "journal.jsonl").open("a") as file:
        file.write('{"t": 9.1, "mono": 10')
    with (tmp_path / "metrics.jsonl").open("ab") as binary:
        binary.write(b'{"step": 21, "lo\xff')
    analysis = analyse(tmp_path)
    assert analysis.unreadable == 2
    assert len(analysis.recoveries) == 1
    assert len(analysis.commits) == 20


def test_a_journal_without_metrics_still_gives_the_recoveries(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_with_one_kill(tmp_path)
    (tmp_path / "metrics.jsonl").unlink()
    assert main([str(tmp_path), "--picture", str(tmp_path / "a.png"), "--html", str(tmp_path / "a.html")]) == 0
    assert "spare" in capsys.readouterr().out


def test_picture_and_page_are_written_and_need_nothing_else(tmp_path: Path) -> None:
    finish(run_with_one_kill(tmp_path), 5.5)
    picture, html = tmp_path / "out" / "loss.png", tmp_path / "out" / "loss.html"
    assert main([str(tmp_path), "--picture", str(picture), "--html", str(html)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    text = html.read_text()
    assert "http" not in text
    assert "<script" not in text
    assert "SIGKILL" in text


def test_the_drawings_are_well_formed_and_what_users_wrote_is_escaped(tmp_path: Path) -> None:
    run = run_with_one_kill(tmp_path)
    run.write(5.0, "fault_detected", "<b>&", worker=1, rank=1, pid=71, detected_by="<i>", kind="death")
    run.write(5.01, "verdict", "<script>", step=20, version=19, verdict="redo")
    analysis = analyse(tmp_path)
    assert ElementTree.fromstring(loss_svg(analysis)).tag == "svg"
    assert ElementTree.fromstring(timeline_svg(analysis.recoveries)).tag == "svg"
    assert "<script" not in page(analysis)


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        (lambda folder: None, "is not a directory"),
        (lambda folder: folder.mkdir(), "has no journal.jsonl"),
        (lambda folder: (folder.mkdir(), (folder / "journal.jsonl").touch()), "no readable line"),
    ],
)
def test_a_directory_without_a_run_is_refused_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], prepare: object, says: str
) -> None:
    assert callable(prepare)
    prepare(tmp_path / "run")
    assert main([str(tmp_path / "run")]) == 1
    assert says in capsys.readouterr().err


HOSTILE = "ValueError: [/INST] [bold]x\x1b]0;title\x07\x1b[2J\u202etxt.exe\x9b31m\udc80"
SHOWN = "ValueError: [/INST] [bold]x\\x1b]0;title\\x07\\x1b[2J\\u202etxt.exe\\x9b31m\\udc80"


@pytest.mark.parametrize("width", ["400", "60"])
def test_what_a_job_wrote_is_neither_markup_nor_obeyed_by_the_terminal(tmp_path: Path, width: str) -> None:
    run = run_with_one_kill(tmp_path)
    run.write(5.0, "fault_detected", HOSTILE, worker=1, rank=1, pid=71, detected_by=HOSTILE, kind="exception")
    run.write(5.4, "failure_outlived", HOSTILE, step=2, last_step=4, steps=2, skipped=True)
    run.write(5.5, "job_ended", HOSTILE, exit_code=1)
    done = subprocess.run(
        [sys.executable, "-m", "keepstep.report", str(tmp_path)],
        env=dict(os.environ, COLUMNS=width, PYTHONIOENCODING="utf-8:surrogateescape"), capture_output=True,
    )  # fmt: skip
    printed = done.stdout.decode("utf-8", "surrogateescape")
    assert done.returncode == 0, done.stderr.decode()
    assert visible(printed) == printed
    if width == "400":
        assert printed.count(SHOWN) == 3, printed


def test_a_terminal_still_gets_colours(tmp_path: Path) -> None:
    run = run_with_one_kill(tmp_path)
    finish(run, 5.5)
    done = subprocess.run(
        [sys.executable, "-m", "keepstep.report", str(tmp_path)],
        env=dict(os.environ, FORCE_COLOR="1", TERM="xterm-256color"), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "\x1b[" in done.stdout and "\\x1b" not in done.stdout


def test_errors_show_names_that_a_terminal_would_obey(tmp_path: Path) -> None:
    folder = tmp_path / "run\x1b[2J"
    done = subprocess.run([sys.executable, "-m", "keepstep.report", str(folder)], capture_output=True, text=True)
    assert done.returncode == 1
    assert "run\\x1b[2J" in done.stderr and "\x1b" not in done.stderr
