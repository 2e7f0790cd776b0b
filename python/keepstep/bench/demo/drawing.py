"""The demo as one screen: acts, ranks, steps, the newest recovery, and events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from keepstep._console import shown
from keepstep.bench.demo import members
from keepstep.bench.demo.acts import Act
from keepstep.bench.demo.members import Card
from keepstep.bench.demo.scene import FAULT, RECOVERED, Event, Scene
from keepstep.report import words
from keepstep.report.picture import PHASE_COLOURS
from keepstep.report.recovery import PHASE_TITLES, PHASES, Recovery

CARD_WIDTH = 13  # its longest line is "first step"
RIGHT_OF_BAR = 10  # cells for the total
EVENT_STYLES = {FAULT: "red", RECOVERED: "green"}
DOING_STYLES = {
    members.TRAINING: "green",
    members.FINISHED: "green",
    members.PARKED: "cyan",
    members.STARTING: "dim",
    **dict.fromkeys(members.ENDED, "bold red"),
}  # all others are phases of a recovery
IN_RECOVERY = "yellow"


@dataclass(frozen=True)
class Frame:
    """One frame of the screen. It fills the given height by dropping the oldest events."""

    title: str
    acts: Sequence[Act]
    elapsed_s: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        options = options.update(height=None)
        height = options.max_height
        act = next((act for act in reversed(self.acts) if act.scene is not None), None)
        scene = None if act is None else act.scene
        lines = _lines(console, options, [self._head(), *map(_act_line, self.acts)])
        if scene is not None:
            lines += _lines(console, options, [_row(scene.row), _steps(scene), *_recovery(scene), Text()])
            room = max(0, height - len(lines))
            lines += _lines(console, options, [_event(event) for event in scene.events[-room:]] if room else [])
        for number, line in enumerate(lines[:height]):
            yield from [Segment.line()] if number else []
            yield from line

    def _head(self) -> Table:
        table = Table.grid(expand=True)
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        table.add_column(justify="right", no_wrap=True)
        minutes, seconds = divmod(int(self.elapsed_s), 60)
        table.add_row(shown(self.title, "bold"), Text(f"{minutes}:{seconds:02}", style="dim"))
        return table


def _lines(console: Console, options: ConsoleOptions, parts: Iterable[RenderableType]) -> list[list[Segment]]:
    return [line for part in parts for line in console.render_lines(part, options, pad=False)]


def _act_line(act: Act) -> Text:
    running = act.scene is not None and not act.result
    sign, style = (">", "bold") if running else ("✓", "green") if act.holds else ("·", "dim")
    if act.result and not act.holds:
        sign, style = "✗", "bold red"
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append_text(shown(f" {sign} {act.title}", style))
    text.append_text(shown(f"  {act.result}", style if act.result and not act.holds else "dim"))
    return text


def _row(cards: Sequence[Card]) -> Columns:
    several_nodes = len({card.node for card in cards} - {None}) > 1
    return Columns([_card(card, several_nodes) for card in cards], padding=(0, 0))


def _card(card: Card, several_nodes: bool) -> Panel:
    style = DOING_STYLES.get(card.doing, IN_RECOVERY)
    lines = [shown(card.doing, style), shown("" if card.pid is None else f"pid {card.pid}", "")]
    lines.append(shown("" if card.replaced is None else f"✗ {card.replaced}", "red"))
    return Panel(
        Text("\n").join(lines),
        title=shown(card.name, "bold"),
        title_align="left",
        subtitle=shown(f"node {card.node}", "dim") if several_nodes and card.node is not None else None,
        subtitle_align="right",
        border_style=style,
        padding=(0, 0, 0, 1),
        width=CARD_WIDTH,
        height=5,
    )


def _steps(scene: Scene) -> Table:
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    table.add_column(no_wrap=True, min_width=len("loss 0.0000"))
    step = f" step {scene.step:{len(str(scene.last_step))}} of {scene.last_step}"
    loss = "" if scene.loss is None else f"loss {scene.loss:.4f}"
    table.add_row(
        Text(step, style="bold"),
        ProgressBar(scene.last_step, scene.step, complete_style="green", finished_style="green"),
        Text(loss),
    )
    return table


def _recovery(scene: Scene) -> list[RenderableType]:
    recovery = scene.recovery
    if recovery is None:
        return []
    killed = shown("; ".join(scene.what_was_killed(recovery)), "bold red" if not recovery.complete else "bold")
    head = Text(f" {scene.recoveries}. ", no_wrap=True, overflow="ellipsis").append_text(killed)
    return [Text(), head, _Bar(recovery), _phases(recovery), _outcome(recovery)]


@dataclass(frozen=True)
class _Bar:
    """The phases so far, to scale: the bar grows with each phase, and its full width is a round number of seconds."""

    recovery: Recovery

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        phases = {name: seconds or 0.0 for name, seconds in self.recovery.phases_s().items()}
        cells = max(1, options.max_width - RIGHT_OF_BAR)
        scale = _scale_s(sum(phases.values()))
        text = Text(" ")
        done = 0.0
        for name in PHASES:
            begin, done = done, done + phases[name]
            text.append("█" * (round(done / scale * cells) - round(begin / scale * cells)), style=PHASE_COLOURS[name])
        if self.recovery.total_s is not None:
            text.append(f" {words.milliseconds(self.recovery.total_s)} ms", style="bold")
        yield text


def _scale_s(seconds: float) -> float:
    """The smallest of 0.1, 0.2, 0.5, 1, 2, ... that is at least `seconds`."""
    scale = 0.1
    for factor in (2.0, 2.5, 2.0) * 5:
        if seconds <= scale:
            break
        scale *= factor
    return scale


def _phases(recovery: Recovery) -> Padding:
    table = Table.grid(expand=True)
    for _ in PHASES:
        table.add_column(no_wrap=True, ratio=1)
    phases = recovery.phases_s()
    table.add_row(*(shown(PHASE_TITLES[name], PHASE_COLOURS[name]) for name in PHASES))
    table.add_row(
        *(Text(f"{words.milliseconds(phases[name])} ms" if phases[name] is not None else "") for name in PHASES)
    )
    return Padding(table, (0, 0, 0, 1))


def _outcome(recovery: Recovery) -> Text:
    parts = []
    if recovery.verdict is not None:
        done = {"redo": "redone", "forward": "counts"}.get(recovery.verdict, recovery.verdict)
        parts.append(f"step {recovery.step} {done}")
    if recovery.replaced_by:
        parts.append(f"replaced by: {', '.join(recovery.replaced_by)}")
    if recovery.bytes_moved:
        parts.append(f"{words.size(recovery.bytes_moved)} moved")
    if recovery.complete:
        parts.append(f"{recovery.lost_steps} steps lost")
    return Text(f" {'; '.join(parts)}", style="dim", no_wrap=True, overflow="ellipsis")


def _event(event: Event) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis").append(f" {event.t:6.2f} s  ", style="dim")
    return text.append_text(shown(event.text, EVENT_STYLES.get(event.kind, "")))
