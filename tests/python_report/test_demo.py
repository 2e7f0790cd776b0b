"""What `make demo` shows of a job, from journals of real runs (`runs/`): 12 steps, ranks and a node killed."""

from __future__ import annotations

import io
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import rich.console

from keepstep._console import Console
from keepstep.bench.demo import members
from keepstep.bench.demo.acts import Act
from keepstep.bench.demo.drawing import Frame
from keepstep.bench.demo.picture import save_picture
from keepstep.bench.demo.run_files import RunFiles
from keepstep.bench.demo.scene import Scene
from keepstep.bench.demo.show import open_show
from keepstep.report import words
from keepstep.report.analysis import analyse
from keepstep.report.journal import Line

RUNS = Path(__file__).parent / "runs"
LAST_STEP = 12


def told(run: str) -> Iterator[tuple[Line | None, Scene]]:
    """The scene after each line, and the line if it is one of node 0's journal."""
    scene = Scene(LAST_STEP)
    for one in RunFiles(RUNS / run).poll():
        scene.read([one])
        yield one if isinstance(one, Line) and one.integer("node") == 0 else None, scene


def after(run: str, event: str, generation: int) -> Scene:
    for line, scene in told(run):
        if line is not None and (line.event, line.generation) == (event, generation):
            return scene
    raise AssertionError(f"no {event} in generation {generation}")


def act(scene: Scene) -> Act:
    return Act("disturbed", "two ranks are killed", scene)


def drawn(scene: Scene, width: int = 80, height: int = 24) -> list[str]:
    console = rich.console.Console(file=io.StringIO(), width=width, height=height)
    console.print(Frame("keepstep", [act(scene)], 61.0))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize("run", ["ranks_killed", "node_killed"])
def test_the_step_counter_never_goes_back_and_reaches_the_last_step(run: str) -> None:
    steps = [scene.step for _, scene in told(run)]
    assert steps == sorted(steps)
    assert (steps[0], steps[-1]) == (0, LAST_STEP)


@pytest.mark.parametrize("run", ["ranks_killed", "node_killed"])
def test_phases_are_those_of_the_report(run: str) -> None:
    shown = {}
    for _, scene in told(run):
        if scene.recovery is not None and scene.recovery.complete:
            shown[scene.recoveries] = (scene.recovery.phases_s(), scene.recovery.bytes_moved)
    reported = analyse(RUNS / run).recoveries
    assert list(shown.values()) == [(recovery.phases_s(), recovery.bytes_moved) for recovery in reported]
    assert len(shown) == 2


def test_a_killed_rank_is_seen_dead_and_a_spare_takes_its_place() -> None:
    before = after("ranks_killed", "first_commit", 1)
    assert [card.doing for card in before.row] == [members.TRAINING] * 4 + [members.PARKED]
    spare = before.row[4].pid
    killed = after("ranks_killed", "injected", 1)
    assert [card.doing for card in killed.row[:4]] == [members.TRAINING] * 2 + [members.KILLED, members.TRAINING]
    dead = killed.row[2].pid
    hydrating = after("ranks_killed", "activated", 2)
    assert [card.doing for card in hydrating.row] == ["sending", "sending", "hydrating", "sending"]
    recovered = after("ranks_killed", "first_commit", 2)
    assert (recovered.row[2].doing, recovered.row[2].pid, recovered.row[2].replaced) == (members.TRAINING, spare, dead)


def test_ranks_of_a_killed_node_move_to_the_spare_node() -> None:
    nodes = [card.node for card in after("node_killed", "first_commit", 2).row]
    assert nodes == [0, 0, 1, 1, 2, 2]
    killed = after("node_killed", "fault_detected", 2)
    assert [card.doing for card in killed.row[:4]] == [members.TRAINING] * 2 + [members.KILLED] * 2
    assert [card.node for card in after("node_killed", "first_commit", 3).row] == [0, 0, 2, 2]


def test_events_tell_the_kill_the_verdict_the_replacement_and_the_new_step() -> None:
    scene = after("ranks_killed", "first_commit", 2)
    recovery = analyse(RUNS / "ranks_killed").recoveries[0]
    fault = recovery.faults[0]
    at = next(index for index, event in enumerate(scene.events) if "killed" in event.text)
    killed, detected, verdict, replaced, pulled, committed = (event.text for event in scene.events[at:])
    assert killed == f"rank 2 (pid {fault.pid}) killed with SIGKILL in its backward of step 4"
    assert detected == f"rank 2 (pid {fault.pid}): detected by robust mutex after " + (
        f"{words.milliseconds(recovery.phases_s()['detect'])} ms"
    )
    assert verdict == "verdict: step 4 is redone, as rank 0 had not voted on step 4"
    assert replaced == f"rank 2 is now pid {scene.row[2].pid}, a spare"
    assert pulled == f"state pulled: {words.moved(recovery.hydrations[0])}"
    assert committed.startswith(
        f"step 4 committed by all ranks {words.milliseconds(recovery.total_s)} ms after the fault: detect "
    )


@pytest.mark.parametrize("run", ["ranks_killed", "node_killed"])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 12), (200, 60), (10, 3)])
def test_every_screen_fits_its_terminal(run: str, width: int, height: int) -> None:
    for _, scene in told(run):
        lines = drawn(scene, width, height)
        assert len(lines) <= height
        assert all(len(line) <= width for line in lines), lines


def test_a_screen_of_80x24_shows_ranks_steps_the_kill_all_phases_and_the_newest_events() -> None:
    scene = after("node_killed", "first_commit", 3)
    recovery = scene.recovery
    assert recovery is not None
    lines = drawn(scene)
    screen = "\n".join(lines)
    for rank in range(4):
        assert f"rank {rank}" in screen
    assert screen.count("training") == 4
    assert screen.count("node 2 ─╯") == 2
    assert "step 10 of 12" in screen
    assert "node 1 killed with SIGKILL: its launcher and ranks 2, 3" in screen
    titles = next(index for index, line in enumerate(lines) if "detect  " in line)
    assert lines[titles].split() == ["detect", "decide", "interrupt", "re-form", "hydrate", "first", "step"]
    times = [f"{words.milliseconds(seconds)} ms" for seconds in recovery.phases_s().values()]
    assert " ".join(lines[titles + 1].split()) == " ".join(times)
    assert f"{words.milliseconds(recovery.total_s)} ms" in lines[titles - 1]
    assert lines[-1].startswith(f" {scene.events[-1].t:6.2f} s  step 10 committed by all ranks")
    assert len(lines) == 24


def test_what_a_rank_does_is_one_line_of_its_box() -> None:
    lines = drawn(after("ranks_killed", "formed", 2))
    assert any(line.count("│ first step") == 4 for line in lines)
    assert any(line.count("│ pid ") == 4 for line in lines)


def test_the_bar_grows_with_each_phase() -> None:
    lengths = []
    for line, scene in told("ranks_killed"):
        if line is not None and line.generation == 2 and line.event in ("verdict", "activated", "formed"):
            lengths.append("\n".join(drawn(scene, width=400, height=30)).count("█"))
    assert 0 < lengths[0] < lengths[1] < lengths[2]


def test_without_a_terminal_each_event_is_one_line_and_none_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console()
    console.file = io.StringIO()
    scene = Scene(LAST_STEP)
    shown_act = act(scene)
    with open_show("the title", [shown_act], console) as show:
        for one in RunFiles(RUNS / "ranks_killed").poll():
            scene.read([one])
            show.update(shown_act, changed=True)
        shown_act.result = "nothing lost"
        show.update(shown_act, changed=True)
    expected = [f"{event.t:7.2f} s  {event.text}" for event in scene.events]
    text = console.file.getvalue()
    assert text.splitlines() == ["the title", "", "two ranks are killed", *expected, "           nothing lost"]
    assert len(set(expected)) == len(expected) > 15
    assert "\x1b" not in text


def test_a_picture_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    save_picture([act(after("ranks_killed", "job_ended", 3))], tmp_path / "demo.svg")
    picture = (tmp_path / "demo.svg").read_text()
    assert "first&#160;step" in picture
    assert "url(http" not in picture


def test_appended_lines_are_read_once_and_a_cut_off_one_when_it_is_whole(tmp_path: Path) -> None:
    run = tmp_path / "run"
    files = RunFiles(run)
    assert files.poll() == []
    run.mkdir()
    content = (RUNS / "ranks_killed" / "journal.jsonl").read_bytes()
    cut = content.index(b"\n") + 20
    (run / "journal.jsonl").write_bytes(content[:cut])
    assert [one.event for one in files.poll() if isinstance(one, Line)] == ["job_started"]
    assert files.poll() == []
    with (run / "journal.jsonl").open("ab") as file:
        file.write(content[cut:])
    assert len(files.poll()) == content.count(b"\n") - 1


@pytest.fixture
def replayed(tmp_path: Path) -> Path:
    """A command `keepstep` that writes a real run's journal up to the kill, and then hangs."""
    journal = (RUNS / "ranks_killed" / "journal.jsonl").read_text().splitlines()
    kill = next(index for index, line in enumerate(journal) if '"injected"' in line)
    (tmp_path / "lines").write_text("\n".join(journal[: kill + 1]) + "\n")
    command = tmp_path / "keepstep"
    command.write_text(
        f'#!/bin/sh\nwhile [ "$1" != --journal ]; do shift; done\nmkdir -p "$2"\n'
        f'echo $$ > {tmp_path}/pid\ncp {tmp_path}/lines "$2/journal.jsonl"\nexec sleep 600\n'
    )
    command.chmod(0o755)
    return command


def demo_on_a_terminal(command: Path, **variables: str) -> tuple[subprocess.Popen[bytes], int]:
    ours, theirs = pty.openpty()
    unset = ("CI", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")
    values = {name: value for name, value in os.environ.items() if name not in unset}
    process = subprocess.Popen(
        [sys.executable, "-m", "keepstep.bench", "demo", "--out", str(command.parent / "out")],
        env={**values, "KEEPSTEP_COMMAND": str(command), "TERM": "xterm-256color", **variables},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # who runs the tests may ignore it
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    return process, ours


def read_until(terminal: int, wanted: bytes, so_far: bytes = b"") -> bytes:
    """What the terminal got, once `wanted` is in it or nothing writes to it any more."""
    while wanted not in so_far:
        assert select.select([terminal], [], [], 120)[0], f"no {wanted!r} within 120 s, but {so_far!r}"
        try:
            so_far += os.read(terminal, 65536)
        except OSError:  # the other end is closed
            break
    return so_far


def stopped_after_a_kill(replayed: Path, **variables: str) -> tuple[bytes, bytes]:
    """What a demo on a terminal said until Ctrl-C, which comes after the first kill; and all of it."""
    process, terminal = demo_on_a_terminal(replayed, **variables)
    try:
        before = read_until(terminal, b"killed with SIGKILL")
        process.send_signal(signal.SIGINT)
        said = read_until(terminal, b"all its processes are ended", before)
        assert process.wait(60) == 130
    finally:
        process.kill()
        os.close(terminal)
    return before, said


def test_ctrl_c_on_the_live_screen_ends_the_job_and_gives_the_terminal_back(replayed: Path) -> None:
    before, said = stopped_after_a_kill(replayed)
    assert b"\x1b[?1049h" in before, "it has a screen of its own"
    after_the_screen = said[said.rindex(b"\x1b[?1049l") :]
    assert said.count(b"\x1b[?1049h") == said.count(b"\x1b[?1049l") == 1
    assert said.rindex(b"\x1b[?25h") > said.rindex(b"\x1b[?25l"), "the cursor is shown again"
    assert b"keepstep demo: stopping the job" in after_the_screen
    with pytest.raises(ProcessLookupError):
        os.kill(int((replayed.parent / "pid").read_text()), 0)


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {"CI": "true"}], ids=str)
def test_a_terminal_that_wants_plain_text_gets_lines(replayed: Path, variables: dict[str, str]) -> None:
    _, said = stopped_after_a_kill(replayed, **variables)
    assert b"\x1b[?" not in said
    assert said.count(b"all ranks train") == 1


def test_what_an_earlier_demo_wrote_is_replaced(replayed: Path) -> None:
    shutil.copytree(RUNS / "ranks_killed", replayed.parent / "out" / "undisturbed" / "run")
    process, terminal = demo_on_a_terminal(replayed, CI="1")
    try:
        read_until(terminal, b"killed with SIGKILL")
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
        os.close(terminal)
    assert (replayed.parent / "out/undisturbed/run/journal.jsonl").read_text() == (
        replayed.parent / "lines"
    ).read_text()
