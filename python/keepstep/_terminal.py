"""Safe display of text from jobs, storage and other machines on a terminal: control characters are escaped.

A terminal obeys control characters (it moves the cursor, sets titles, answers as if somebody typed), and characters
that change the writing direction can disguise text. `src/base/terminal_text.h` does the same in C++.
"""

from __future__ import annotations

import re
from typing import TextIO, cast

# C0 except tab and newline, delete, C1; marks, embeddings, overrides and isolates of bidirectional text (UAX 9); lone
# surrogates, which stand for undecodable bytes in file names.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """`text` with escapes (``\\x1b``) in place of what a terminal would obey; newlines and tabs stay."""
    return _OBEYED.sub(lambda found: ascii(found.group())[1:-1], text)


class VisibleStream:
    """A text stream whose `write` escapes what a terminal would obey. Everything else is passed to the stream."""

    def __init__(self, stream: TextIO) -> None:
        self.beneath = stream

    def write(self, text: str) -> int:
        self.beneath.write(visible(text))
        return len(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self.beneath, name)


def visible_stream(stream: TextIO) -> TextIO:
    """A stream to print on whose text a terminal shows but never obeys."""
    return cast(TextIO, VisibleStream(stream))


def beneath(stream: TextIO) -> TextIO:
    """The underlying stream if `stream` is a `visible_stream`, otherwise `stream` itself."""
    return stream.beneath if isinstance(stream, VisibleStream) else stream
