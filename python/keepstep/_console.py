"""rich's console for text from other sources: ``[/INST]`` in an exception is not markup, and escapes are shown."""

from __future__ import annotations

import sys
from typing import Any

import rich.console
from rich.text import Text

from keepstep._terminal import beneath, visible


class Console(rich.console.Console):
    """Prints strings literally, also in tables. Use `shown` for styled text (`Text`)."""

    def __init__(self, stderr: bool = False) -> None:
        stream = beneath(sys.stderr if stderr else sys.stdout)  # the terminal obeys only what rich itself writes
        super().__init__(file=stream, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)


def shown(text: str, style: str) -> Text:
    """Text with a style."""
    return Text(visible(text), style=style)
