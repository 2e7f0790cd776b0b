"""The certificate on a terminal and as a single HTML file."""

from __future__ import annotations

from html import escape
from pathlib import Path

from rich.table import Table
from rich.text import Text

from keepstep._console import Console, shown
from keepstep.certify.certificate import Certificate, effect_text
from keepstep.certify.judge import LOST, RESTARTS, SURVIVES, Outcome
from keepstep.report.html import STYLE
from keepstep.report.recovery import PHASE_TITLES, PHASES

SIDE_EFFECTS = (
    "Done more often than without a fault. A redone step, a new process (it runs the script from its top) and a spare "
    "that rehearses repeat what the script does there; run.once does it once."
)
SEEN = (
    "Seen: files that Python or torch.save opens to write, removes or renames, programs started, TCP connections, and "
    "lines printed. What else a library does in C or C++ is not."
)


def _shape(found: Certificate) -> str:
    nodes = f" on {found.nodes} nodes" if found.nodes > 1 else ""
    spares = f", {found.spares} spares" if found.spares else ""
    spare_nodes = f", {found.spare_nodes} spare nodes" if found.spare_nodes else ""
    return f"{found.script}: {found.world} ranks{nodes}{spares}{spare_nodes}, {found.steps} steps a job"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def _cells(outcome: Outcome) -> list[str]:
    return [
        outcome.trial.name,
        outcome.trial.says,
        outcome.verdict,
        ", ".join(outcome.replaced_by) or "-",
        _milliseconds(outcome.downtime_ms),
        str(outcome.lost_steps),
        outcome.because,
    ]


HEADS = ("fault", "what happens", "the job", "replaced by", "still ms", "lost steps", "")
COLOURS = {SURVIVES: "green", RESTARTS: "yellow", LOST: "bold red"}


def print_certificate(found: Certificate, console: Console) -> None:
    console.print(_shape(found))
    if found.outcomes:
        table = Table(title=found.headline(), title_justify="left", padding=(0, 0, 0, 1))
        remarks = any(outcome.because for outcome in found.outcomes)
        heads = HEADS if remarks else HEADS[:-1]
        for number, head in enumerate(heads):
            table.add_column(head, justify="right" if number in (4, 5) else "left", no_wrap=number in (0, 2))
        for outcome in found.outcomes:
            cells: list[str | Text] = [*_cells(outcome)[: len(heads)]]
            cells[2] = shown(outcome.verdict, style=COLOURS.get(outcome.verdict, "dim"))
            table.add_row(*cells)
        console.print(table)
        if any(outcome.phases_ms for outcome in found.outcomes):
            console.print(_phases(found))
    for title, text in found.findings():
        console.print(f"{title}: {text}")
    effects = found.side_effects()
    if effects:
        console.print(f"side effects repeated. {SIDE_EFFECTS}")
        for effect, count, where in effects:
            console.print(
                f"  {effect_text(effect)}: {count} times more ({', '.join(where[:4])}{', ...' * (len(where) > 4)})"
            )
    elif found.outcomes and found.witnessed:
        console.print("side effects repeated: none that was seen")
    if found.outcomes and found.witnessed:
        console.print(SEEN, style="dim")
    if found.not_tried:
        console.print("not tried:")
        for each in found.not_tried:
            console.print(f"  {each.name}: {each.because}")


def _phases(found: Certificate) -> Table:
    table = Table(title="Cost of the longest recovery, ms", title_justify="left", padding=(0, 0, 0, 1))
    table.add_column("fault", no_wrap=True)
    for phase in PHASES:
        table.add_column(PHASE_TITLES[phase], justify="right")
    for outcome in found.outcomes:
        if outcome.phases_ms:
            table.add_row(outcome.trial.name, *(_milliseconds(outcome.phases_ms[phase]) for phase in PHASES))
    return table


def _row(cells: list[str], tag: str = "td") -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def html(found: Certificate) -> str:
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width"><title>keepstep certify</title>',
        f"<style>{STYLE}</style></head><body><h1>keepstep certify: {escape(found.headline())}</h1>",
        f"<p>{escape(_shape(found))}</p>",
    ]
    if found.outcomes:
        rows = _row(list(HEADS), "th") + "".join(_row(_cells(outcome)) for outcome in found.outcomes)
        parts.append(f"<h2>Faults</h2><table>{rows}</table>")
        heads = ["fault", *(PHASE_TITLES[phase] for phase in PHASES), "how it was started"]
        rows = _row(heads, "th") + "".join(
            _row([o.trial.name, *(_milliseconds(o.phases_ms.get(phase)) for phase in PHASES), " ".join(o.trial.faults)])
            for o in found.outcomes
        )
        parts.append(f"<h2>Cost of the longest recovery, ms</h2><table>{rows}</table>")
    findings = "".join(_row([title, text]) for title, text in found.findings())
    parts.append(f"<h2>Findings</h2><table>{findings}</table>")
    effects = "".join(
        _row([effect_text(effect), str(count), ", ".join(where)]) for effect, count, where in found.side_effects()
    )
    if found.outcomes and found.witnessed:
        parts.append(f"<h2>Side effects repeated</h2><p>{SIDE_EFFECTS} {SEEN}</p>")
        parts.append(
            f"<table>{_row(['what', 'times more', 'after'], 'th')}{effects}</table>" if effects else "<p>None.</p>"
        )
    if found.not_tried:
        rows = "".join(_row([each.name, each.because]) for each in found.not_tried)
        parts.append(f"<h2>Not tried</h2><table>{rows}</table>")
    parts.append("</body></html>\n")
    return "".join(parts)


def write_html(found: Certificate, path: Path) -> None:
    path.write_text(html(found), encoding="utf-8")
