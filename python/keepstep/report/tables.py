"""The report on a terminal."""

from __future__ import annotations

from rich.table import Table

from keepstep._console import Console, shown
from keepstep.report import words
from keepstep.report.analysis import Analysis
from keepstep.report.recovery import PHASE_TITLES, PHASES


def recovery_table(analysis: Analysis) -> Table:
    table = Table(title="Recoveries", title_justify="left", show_lines=True, padding=(0, 0, 0, 1))
    table.add_column("#", justify="right")
    table.add_column("at s", justify="right")
    table.add_column("step", justify="right")
    table.add_column("what died")
    table.add_column("detected by", min_width=len("connection"))
    table.add_column("verdict")
    table.add_column("replaced by")
    table.add_column("lost steps", justify="right")
    for number, recovery in enumerate(analysis.recoveries, 1):
        table.add_row(
            str(number),
            f"{recovery.started_t:.2f}",
            "-" if recovery.step is None else str(recovery.step),
            words.what_happened(recovery),
            "\n".join(fault.detected_by for fault in recovery.faults) or "-",
            recovery.verdict or "-",
            ", ".join(recovery.replaced_by) or "-",
            str(recovery.lost_steps) if recovery.complete else shown("not recovered", style="bold red"),
        )
    return table


def phase_table(analysis: Analysis) -> Table:
    table = Table(title="Phases of each recovery, ms", title_justify="left", padding=(0, 0, 0, 1))
    table.add_column("#", justify="right")
    for phase in PHASES:
        table.add_column(PHASE_TITLES[phase], justify="right", no_wrap=phase != "first_step")
    table.add_column("total", justify="right")
    table.add_column("less one step", justify="right", style="bold")
    for number, recovery in enumerate(analysis.recoveries, 1):
        phases = recovery.phases_s()
        table.add_row(
            str(number),
            *(words.milliseconds(phases[phase]) for phase in PHASES),
            words.milliseconds(recovery.total_s),
            words.milliseconds(recovery.downtime_s),
        )
    return table


def resize_table(analysis: Analysis) -> Table:
    table = Table(title="Changes of size", title_justify="left", padding=(0, 0, 0, 1))
    table.add_column("at s", justify="right")
    table.add_column("after step", justify="right")
    table.add_column("ranks", justify="right", no_wrap=True)
    table.add_column("pause ms", justify="right", style="bold")
    table.add_column("why")
    for resize in analysis.resizes:
        table.add_row(
            f"{resize.t:.2f}",
            "-" if resize.step is None else str(resize.step),
            f"{resize.before} -> {resize.now}",
            words.milliseconds(resize.pause_s),
            resize.because,
        )
    return table


def summary_table(analysis: Analysis) -> Table:
    totals = analysis.totals
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim")
    table.add_column()
    spares = f"{analysis.spares} spare{'' if analysis.spares == 1 else 's'}"
    table.add_row("job", f"{analysis.script}, {analysis.world_size} ranks, {spares}")
    end = "-" if analysis.ended is None else f"exit code {analysis.ended}"
    table.add_row("end", f"{end} {analysis.ended_because}".strip())
    for failure in analysis.outlived:
        table.add_row("outlived", shown(failure, style="bold red"))
    table.add_row("committed steps", f"{len(analysis.commits)}, median {words.milliseconds(analysis.median_step_s)} ms")
    redone = f", committed steps done again {totals.redone_steps}" if totals.redone_steps else ""
    table.add_row("recoveries", f"{len(analysis.recoveries)}, lost steps {totals.lost_steps}{redone}")
    if analysis.spares_lost:
        table.add_row("spares lost", ", ".join(f"{words.who(f)}: {f.how()}" for f in analysis.spares_lost))
    for straggler in analysis.stragglers:
        table.add_row("slow", words.limped(straggler))
    for waits in analysis.data_waits:
        table.add_row("data", words.waited(waits))
    if analysis.refused:
        table.add_row("refused", f"{analysis.refused} messages or connections (see the journal)")
    goodput = "-" if totals.goodput is None else f"{totals.goodput:.2%}"
    table.add_row("goodput", f"{goodput} of {totals.wall_s:.1f} s ({totals.useful_s:.1f} s of steps)")
    table.add_row("starting", "-" if totals.starting_s is None else f"{totals.starting_s:.1f} s")
    table.add_row("recovering", f"{totals.recovering_s:.3f} s = {totals.lost_rank_seconds:.3f} rank-seconds lost")
    if totals.lost_money is not None:
        table.add_row("lost money", f"{totals.lost_money:.4f}")
    table.add_row("bytes moved", words.size(totals.bytes_moved))
    if analysis.memory_per_rank is not None and analysis.memory_total is not None:
        per_rank, total = words.size(analysis.memory_per_rank), words.size(analysis.memory_total)
        table.add_row("shared memory", f"{per_rank} a rank, {total} in all on node 0")
    if analysis.sockets and analysis.connections_per_rank:
        table.add_row(
            "socket buffers",
            f"at most {words.size(analysis.sockets)} on node 0, for at most {analysis.connections_per_rank} "
            "connections a rank",
        )
    for number, recovery in enumerate(analysis.recoveries, 1):
        for hydration in recovery.hydrations:
            table.add_row(f"  recovery {number}", words.moved(hydration))
    if analysis.unreadable:
        table.add_row("unreadable lines", f"{analysis.unreadable} (cut off by a kill?)")
    return table


def print_report(analysis: Analysis, console: Console) -> None:
    if analysis.recoveries:
        console.print(recovery_table(analysis))
        console.print(phase_table(analysis))
    else:
        console.print("No recovery: nothing failed.")
    if analysis.resizes:
        console.print(resize_table(analysis))
    console.print(summary_table(analysis))
