"""Text from jobs, storage and other machines on a terminal: shown as what it is, never obeyed.

A terminal obeys control characters (it moves the cursor, sets titles, answers as if somebody typed), and characters
that change the direction of writing make text read as another. `src/base/terminal_text.h` does the same in C++.
"""

from __future__ import annotations

import re
from typing import TextIO, cast

# C0 but tab and newline, delete, C1; marks, embeddings, overrides and isolates of bidirectional text (UAX 9); lone
# halves of surrogate pairs, which are undecodable bytes of names of files.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """`text` with escapes (``\\x1b``) in the place of what a terminal would obey; lines and tabs stay."""
    return _OBEYED.sub(lambda found: ascii(found.group())[1:-1], text)


class VisibleStream:
    """A stream of text whose `write` shows what a terminal would obey. All else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self.beneath = stream

    def write(self, text: str) -> int:
        self.beneath.write(visible(text))
        return len(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self.beneath, name)


def visible_stream(stream: TextIO) -> TextIO:
    """To print on: text is shown, never obeyed."""
    return cast(TextIO, VisibleStream(stream))


def beneath(stream: TextIO) -> TextIO:
    """The stream itself, whether or not it is a `visible_stream`."""
    return stream.beneath if isinstance(stream, VisibleStream) else stream
