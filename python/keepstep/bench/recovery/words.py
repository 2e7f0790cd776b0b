"""The result of ``keepstep bench recovery`` as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from keepstep._console import Console, shown
from keepstep.report.recovery import PHASE_TITLES


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:,.1f}"


def print_result(result: Mapping[str, Any], console: Console) -> None:
    table = Table(title="Standstill after a SIGKILL, ms", title_justify="left")
    table.add_column("tool")
    for head in ("median", "best", "worst", "one step", "kills", "lost steps"):
        table.add_column(head, justify="right")
    for tool in ("keepstep", "torchrun", "torchft"):
        row = result.get(tool)
        if row is not None:
            times = (_ms(row[name]) for name in ("downtime_s", "best_s", "worst_s", "step_s"))
            table.add_row(tool, *times, str(row["kills"]), str(row["lost_steps"]))
    console.print(table)
    ours = result.get("keepstep")
    if ours is not None:
        phases = ", ".join(f"{PHASE_TITLES.get(name, name)} {_ms(value)}" for name, value in ours["phases"].items())
        console.print(f"phases, median ms: {phases}")
        equal = shown("equal, bit for bit", "") if ours["bitwise_equal"] else shown("DIFFERENT", "bold red")
        console.print(f"losses of {ours['compared_steps']} steps against an undisturbed run:", equal)
    for field, tool in (("ratio", "torchrun"), ("ratio_torchft", "torchft")):
        if field in result:
            console.print(f"{tool} stands still {result[field]:.1f} times as long")
    for row in result.get("sweep_state", []):
        console.print(f"{row['bytes_moved']:>13,} bytes to hydrate: median {_ms(row['downtime_s'])} ms")
