"""Shell scripts as commands of words, each with its place in the text. Nothing is expanded or run.

Covers what launch scripts contain: quotes, continued lines, expansions, arrays, redirections, here-documents, comments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_ENDS_WORD = set(" \t\n;&|()<>")
_CLOSES = {"(": ")", "{": "}"}
_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)\+?=(?P<value>.*)", re.DOTALL)
_EXPANSION = re.compile(r'"?\$(?:(?P<plain>[A-Za-z_]\w*)|\{(?P<braced>[A-Za-z_]\w*)(?:\[[@*]\])?\})"?')


@dataclass(frozen=True)
class Word:
    """``raw`` is the text from ``start``, as written."""

    start: int
    raw: str

    @property
    def end(self) -> int:
        return self.start + len(self.raw)

    @property
    def text(self) -> str:
        """Without quotes and backslashes."""
        return re.sub(r"""\\(?P<kept>[^\n])|\\\n|["']""", lambda found: found["kept"] or "", self.raw)

    @property
    def variable(self) -> str | None:
        """NAME if the word is one expansion: $NAME, "${NAME}", "${NAME[@]}"."""
        found = _EXPANSION.fullmatch(self.raw)
        return found and (found["plain"] or found["braced"])

    @property
    def assignment(self) -> tuple[str, Word] | None:
        """NAME and VALUE if the word is NAME=VALUE or NAME+=VALUE."""
        found = _ASSIGNMENT.fullmatch(self.raw)
        return found and (found["name"], Word(self.start + found.start("value"), found["value"]))

    @property
    def inside(self) -> tuple[int, int] | None:
        """From where to where the text in quotes, in (), or in $() lies, if the whole word is that."""
        for opening in ('"', "'", "$(", "("):
            closing = _CLOSES.get(opening[-1], opening)
            inner = self.raw[len(opening) : -1]
            if self.raw.startswith(opening) and self.raw[len(opening) :].endswith(closing):
                several = opening == closing and re.search(rf"(?<!\\){opening}", inner)  # "$A"/"$B"
                return None if several else (self.start + len(opening), self.end - 1)
        return None


@dataclass
class Command:
    """Words up to an operator or the end of the line, redirections left out."""

    words: list[Word]


def commands(text: str, start: int = 0, end: int | None = None) -> Iterator[Command]:
    """The commands of text[start:end], those in here-documents too. Positions count from the start of `text`."""
    yield from _Reader(text, start, len(text) if end is None else end).read()


class _Reader:
    def __init__(self, text: str, start: int, end: int) -> None:
        self._text, self._at, self._end = text, start, end
        self._words: list[Word] = []
        self._documents: list[tuple[str, bool]] = []  # delimiters of the here-documents that begin in this line
        self._skip_word = False  # the next one is where a redirection leads

    def _ahead(self, length: int = 1) -> str:
        return self._text[self._at : min(self._at + length, self._end)]

    def read(self) -> Iterator[Command]:
        while self._at < self._end:
            here = self._ahead()
            if here in " \t" or self._ahead(2) == "\\\n":
                self._at += len(here) + (here == "\\")
            elif here == "#":
                self._at = self._line_end()
            elif here in "<>" and self._ahead(2)[1:] != "(":
                self._redirection()
            elif here in "\n;&|()" and self._ahead(2) != "&>":
                self._at += 1
                yield from self._finish()
                if here == "\n":
                    yield from self._here_documents()
            else:
                self._word()
        yield from self._finish()

    def _finish(self) -> Iterator[Command]:
        if self._words:
            yield Command(self._words)
        self._words, self._skip_word = [], False

    def _line_end(self) -> int:
        found = self._text.find("\n", self._at, self._end)
        return self._end if found < 0 else found

    def _redirection(self) -> None:
        sign = re.compile(r"<<-|<<<|<<|[<>]+[&|]?").match(self._text, self._at, self._end)
        assert sign
        if self._words and self._words[-1].end == self._at and self._words[-1].raw.isdigit():
            self._words.pop()  # the 2 of 2>
        self._at = sign.end()
        self._skip_word = True
        if sign[0] in ("<<", "<<-"):
            self._at += len(self._ahead(100)) - len(self._ahead(100).lstrip(" \t"))
            self._documents.append((Word(0, self._text[self._at : self._word_end(self._at)]).text, sign[0] == "<<-"))

    def _here_documents(self) -> Iterator[Command]:
        for delimiter, indented in self._documents:
            start = self._at
            while self._at < self._end:
                line_end = self._line_end()
                line = self._text[self._at : line_end]
                stop, self._at = self._at, min(line_end + 1, self._end)
                if (line.lstrip("\t") if indented else line) == delimiter:
                    yield from commands(self._text, start, stop)
                    break
        self._documents = []

    def _word(self) -> None:
        if self._ahead(2) == "&>":
            self._at += 2
            self._skip_word = True
            return
        end = self._word_end(self._at)
        if not self._skip_word:
            self._words.append(Word(self._at, self._text[self._at : end]))
        self._at, self._skip_word = end, False

    def _word_end(self, at: int) -> int:
        start = at
        while at < self._end:
            here = self._text[at]
            if here == "(" and re.fullmatch(r"[A-Za-z_]\w*\+?=", self._text[start:at]):
                at = self._group_end(at + 1, ")")
            elif here in "<>" and at == start:
                at = self._group_end(at + 2, ")")  # <(...)
            elif here in _ENDS_WORD:
                break
            else:
                at = self._piece_end(at)
        return at

    def _piece_end(self, at: int) -> int:
        """The end of the character, quotation or expansion that begins at `at`."""
        here, pair = self._text[at], self._text[at : at + 2]
        if here == "\\":
            return min(at + 2, self._end)
        if here == "'":
            found = self._text.find("'", at + 1, self._end)
            return self._end if found < 0 else found + 1
        if here in '"`':
            return self._group_end(at + 1, here)
        if pair in ("$(", "${"):
            return self._group_end(at + 2, _CLOSES[pair[1]])
        return at + 1

    def _group_end(self, at: int, closing: str) -> int:
        """Behind the `closing` that ends what began before `at`."""
        while at < self._end:
            here = self._text[at]
            if here == closing:
                return at + 1
            if here == "(" and closing == ")":
                at = self._group_end(at + 1, ")")
            elif here == "#" and closing == ")" and self._text[at - 1] in " \t\n":
                found = self._text.find("\n", at, self._end)
                at = self._end if found < 0 else found
            elif here == "'" and closing == '"':
                at += 1  # an apostrophe
            else:
                at = self._piece_end(at)
        return self._end
