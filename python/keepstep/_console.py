"""rich's console for text that others wrote: an exception's ``[/INST]`` is no markup, its escapes are shown."""

from __future__ import annotations

import sys
from typing import Any

import rich.console
from rich.text import Text

from keepstep._terminal import beneath, visible


class Console(rich.console.Console):
    """Strings are shown as they are, in tables as well. What is made of them by hand (`Text`) is for `shown`."""

    def __init__(self, stderr: bool = False) -> None:
        stream = beneath(sys.stderr if stderr else sys.stdout)  # the terminal is to obey what rich itself writes
        super().__init__(file=stream, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)


def shown(text: str, style: str) -> Text:
    """A piece of text in a style."""
    return Text(visible(text), style=style)
