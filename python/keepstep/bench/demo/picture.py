"""The last screens of a demo as a self-contained SVG."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path

import rich.console
from rich._export_format import CONSOLE_SVG_FORMAT

from keepstep.bench.demo.acts import Act
from keepstep.bench.demo.drawing import Frame

WIDTH, HEIGHT = 88, 22


def save_picture(acts: Sequence[Act], path: Path) -> None:
    console = rich.console.Console(
        record=True, file=io.StringIO(), width=WIDTH, height=HEIGHT, force_terminal=True, color_system="truecolor"
    )
    for act in acts:
        seconds = act.scene.t if act.scene is not None else 0.0
        console.print(Frame("keepstep", [act], seconds), "\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(console.export_svg(title="make demo", code_format=_without_fonts(CONSOLE_SVG_FORMAT)))


def _without_fonts(template: str) -> str:
    """rich's template refers to a font on a server; every viewer has a monospaced font."""
    return re.sub(r"\s*@font-face \{\{.*?\n    \}\}", "", template, flags=re.DOTALL)
