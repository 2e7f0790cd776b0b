"""The result of ``keepstep bench elastic`` as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from keepstep._console import Console
from keepstep.bench.elastic.resizes import PHASES

TOOLS = {
    "keepstep": "keepstep",
    "keepstep_scale": "keepstep scale",
    "torchrun": "torchrun",
    "torchrun_defaults": "torchrun, defaults",
}


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:,.0f}"


def print_result(result: Mapping[str, Any], console: Console) -> None:
    rows = [(name, title, part) for name, title in TOOLS.items() if (part := result.get(name)) is not None]
    if rows:
        table = Table(title="Pause of a change of size, ms", title_justify="left")
        table.add_column("tool")
        small, large = rows[0][2]["step_s"]
        for head in ("median", "grow", "shrink", "worst", f"step of {small}", f"of {large}"):
            table.add_column(head, justify="right")
        for _, title, part in rows:
            times = [part["pause_s"], part["grow"]["pause_s"], part["shrink"]["pause_s"], part["worst_s"]]
            times += part["step_s"].values()
            table.add_row(title, *map(_ms, times))
        console.print(table)
        for _, title, part in rows:
            console.print(f"{title}: {part['resizes']} changes, {part['redone_steps']} steps redone")
        for _, title, part in rows:
            for direction in ("grow", "shrink"):
                phases = part[direction].get("phases")
                if phases is not None:
                    words = ", ".join(f"{phase.replace('_', ' ')} {_ms(phases.get(phase))}" for phase in PHASES)
                    console.print(f"{title}, {direction}, median ms: {words}")
    for field, title in (("ratio", "torchrun"), ("ratio_defaults", "torchrun with its defaults")):
        if field in result:
            console.print(f"{title} stands still {result[field]:.1f} times as long")
    for name, part in result.get("throughput", {}).items():
        for row in part["worlds"]:
            rate = f"{row['ranks']} ranks {row['steps_per_s']:.3f} steps/s"
            console.print(f"{name}: {rate}, {100 * row['share_of_linear']:.1f}% of linear")
