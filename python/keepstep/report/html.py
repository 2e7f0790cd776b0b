"""The report as one HTML file that needs nothing else: inline SVG and styles, no scripts."""

from __future__ import annotations

from html import escape
from pathlib import Path

from keepstep.report import words
from keepstep.report.analysis import Analysis
from keepstep.report.picture import PHASE_COLOURS
from keepstep.report.recovery import PHASE_TITLES, PHASES, Recovery
from keepstep.report.resizes import Resize

WIDTH, HEIGHT, MARGIN = 900, 300, 46

STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1c; --quiet: #777; --paper: #fff; --rule: #ddd; --fault: #d55e00;
        --loss: #0072b2 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --quiet: #999; --paper: #161616; --rule: #3a3a3a; --fault: #ff8c42; --loss: #56b4e9 } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 960px;
       margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
svg { width: 100%; height: auto; font-size: 12px } svg text { fill: var(--quiet) } svg .fault { fill: var(--fault) }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; display: block; overflow-x: auto }
th, td { border-bottom: 1px solid var(--rule); padding: .25rem .6rem; text-align: left; vertical-align: top;
         white-space: pre-line }
td.n, th.n { text-align: right } .swatch { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em }
"""


def _x(step: int, first: int, last: int) -> float:
    return MARGIN + (step - first) / max(1, last - first) * (WIDTH - 2 * MARGIN)


def loss_svg(analysis: Analysis) -> str:
    """The loss by step; faults are dashed lines that show what happened on hover."""
    points = [(commit.step, commit.loss) for commit in analysis.commits if commit.loss is not None]
    if not points:
        return "<p>No loss was logged.</p>"
    first, last = points[0][0], points[-1][0]
    low, high = min(loss for _, loss in points), max(loss for _, loss in points)

    def y(loss: float) -> float:
        return HEIGHT - MARGIN - (loss - low) / ((high - low) or 1.0) * (HEIGHT - 2 * MARGIN)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="loss by step">']
    for share in (0.0, 0.5, 1.0):
        value = low + share * (high - low)
        parts.append(
            f'<line x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="var(--rule)"/>'
            f'<text x="{MARGIN - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.2f}</text>'
        )
    for step in sorted({first, (first + last) // 2, last}):
        parts.append(
            f'<text x="{_x(step, first, last):.1f}" y="{HEIGHT - MARGIN + 18}" text-anchor="middle">{step}</text>'
        )
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 8}" text-anchor="middle">step</text>')
    line = " ".join(f"{_x(step, first, last):.1f},{y(loss):.1f}" for step, loss in points)
    parts.append(f'<polyline points="{line}" fill="none" stroke="var(--loss)" stroke-width="1.8"/>')
    for number, recovery in enumerate(analysis.recoveries, 1):
        if recovery.step is None:
            continue
        x = _x(min(max(recovery.step, first), last), first, last)
        parts.append(
            f"<g><title>{escape(words.what_happened(recovery))}</title>"
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{MARGIN - 16}" y2="{HEIGHT - MARGIN}" stroke="var(--fault)" '
            f'stroke-dasharray="4 3"/><text class="fault" x="{x:.1f}" y="{MARGIN - 22}" '
            f'text-anchor="middle">{number}</text></g>'
        )
    parts.append("</svg>")
    return "".join(parts)


def timeline_svg(recoveries: list[Recovery]) -> str:
    """A bar per recovery to a common scale, with one color per phase."""
    longest = max((sum(v or 0.0 for v in r.phases_s().values()) for r in recoveries), default=0.0) or 1.0
    height = 30 * len(recoveries) + 8
    left, room = 30, WIDTH - 140
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="phases of the recoveries">']
    for row, recovery in enumerate(recoveries):
        x = float(left)
        parts.append(f'<text x="0" y="{row * 30 + 20}">{row + 1}</text>')
        for phase, seconds in recovery.phases_s().items():
            width = (seconds or 0.0) / longest * room
            label = f"{PHASE_TITLES[phase]}: {words.milliseconds(seconds)} ms"
            parts.append(
                f'<rect x="{x:.1f}" y="{row * 30 + 4}" width="{width:.1f}" height="22" '
                f'fill="{PHASE_COLOURS[phase]}"><title>{label}</title></rect>'
            )
            x += width
        total = words.milliseconds(recovery.total_s)
        parts.append(f'<text x="{x + 6:.1f}" y="{row * 30 + 20}">{total} ms</text>')
    parts.append("</svg>")
    return "".join(parts)


def _row(cells: list[str], numbers: int = 0, tag: str = "td") -> str:
    """A table row; the last ``numbers`` cells are numbers."""
    plain = len(cells) - numbers
    return (
        "<tr>"
        + "".join(f"<{tag}{' class=n' if i >= plain else ''}>{escape(cell)}</{tag}>" for i, cell in enumerate(cells))
        + "</tr>"
    )


def _recovery_rows(recoveries: list[Recovery]) -> str:
    heads = ["#", "what died", "detected by", "verdict", "replaced by", "bytes moved", "lost steps"]
    rows = [_row([*heads, *(f"{PHASE_TITLES[p]} ms" for p in PHASES), "less one step ms"], len(PHASES) + 2, "th")]
    for number, recovery in enumerate(recoveries, 1):
        phases = recovery.phases_s()
        cells = [
            str(number),
            words.what_happened(recovery),
            "\n".join(fault.detected_by for fault in recovery.faults),
            f"{recovery.verdict or '-'}: {recovery.verdict_because}",
            ", ".join(recovery.replaced_by) or "-",
            "\n".join(words.moved(hydration) for hydration in recovery.hydrations) or "-",
            str(recovery.lost_steps),
            *(words.milliseconds(phases[phase]) for phase in PHASES),
            words.milliseconds(recovery.downtime_s),
        ]
        rows.append(_row(cells, len(PHASES) + 2))
    return "<table>" + "".join(rows) + "</table>"


def _resize_rows(resizes: list[Resize]) -> str:
    rows = [_row(["why", "at s", "after step", "ranks", "pause ms"], 4, "th")]
    for resize in resizes:
        step = "-" if resize.step is None else str(resize.step)
        ranks = f"{resize.before} \N{RIGHTWARDS ARROW} {resize.now}"
        rows.append(_row([resize.because, f"{resize.t:.2f}", step, ranks, words.milliseconds(resize.pause_s)], 4))
    return "<table>" + "".join(rows) + "</table>"


def page(analysis: Analysis) -> str:
    totals = analysis.totals
    goodput = "-" if totals.goodput is None else f"{totals.goodput:.2%}"
    summary = (
        f"{escape(analysis.script)}: {analysis.world_size} ranks, {len(analysis.commits)} committed steps of "
        f"{words.milliseconds(analysis.median_step_s)} ms, {len(analysis.recoveries)} recoveries, "
        f"{totals.lost_steps} lost steps, goodput {goodput}, {totals.lost_rank_seconds:.2f} rank-seconds lost."
    )
    legend = "".join(
        f'<span class="swatch" style="background:{PHASE_COLOURS[phase]}"></span>{PHASE_TITLES[phase]}'
        for phase in PHASES
    )
    recoveries = ""
    if analysis.recoveries:
        recoveries = (
            f"<h2>Recoveries</h2><p>{legend}</p>{timeline_svg(analysis.recoveries)}"
            f"{_recovery_rows(analysis.recoveries)}"
        )
    resizes = f"<h2>Changes of size</h2>{_resize_rows(analysis.resizes)}" if analysis.resizes else ""
    slow = ""
    outlived = ""
    if analysis.outlived:
        items = "".join(f"<li>{escape(failure)}</li>" for failure in analysis.outlived)
        outlived = f"<h2>Failures that a redo passed over</h2><ul>{items}</ul>"
    if analysis.stragglers:
        items = "".join(f"<li>{escape(words.limped(straggler))}</li>" for straggler in analysis.stragglers)
        slow = f"<h2>Slow ranks</h2><ul>{items}</ul>"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>keepstep report</title>'
        f"<style>{STYLE}</style></head><body><h1>keepstep report</h1><p>{summary}</p>"
        f"<h2>Loss</h2>{loss_svg(analysis)}{outlived}{recoveries}{resizes}{slow}</body></html>\n"
    )


def write_page(analysis: Analysis, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(analysis), encoding="utf-8")
