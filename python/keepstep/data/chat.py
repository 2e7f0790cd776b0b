"""Fine-tuning examples from JSON lines: a corpus, and beside it which of its tokens are trained on."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from keepstep import _engine
from keepstep._errors import KeepstepError

MAX_LINE_BYTES = 64 << 20
_GZIP = b"\x1f\x8b"
TRAINED_ROLE = "assistant"
# Where examples are question and answer: names of the two, in the order in which they are looked for.
PAIRS = (("prompt", "response"), ("prompt", "completion"), ("question", "answer"), ("instruction", "output"))


@dataclass(frozen=True)
class Turn:
    """What one side said. `trained`: the model is to learn to say it; else it only reads it."""

    role: str
    text: str
    trained: bool


@dataclass(frozen=True)
class ChatTemplate:
    """How turns become text: ``before`` + text + ``after``, with ``{role}`` in both replaced. ChatML unless given.

    What is trained on in an assistant's turn is its text and `after`: so the model learns to end it.
    """

    before: str = "<|im_start|>{role}\n"
    after: str = "<|im_end|>\n"


@dataclass
class ChatSummary:
    """What `write_chat` wrote.

    Attributes:
        examples: written, a document each.
        tokens: in all, and how many of them are trained on.
        skipped: lines that held no example, as file:line and what is wrong; the first 100.
        skipped_lines: how many there were.
    """

    examples: int = 0
    tokens: int = 0
    trained_tokens: int = 0
    skipped_lines: int = 0
    skipped: list[str] = field(default_factory=list)


def turns_of(example: Any) -> list[Turn]:
    """The turns of one example.

    ``{"messages": [{"role": "user", "content": "..."}, ...]}`` (roles system, user, assistant, tool, ...), or question
    and answer: ``prompt`` and ``response`` or ``completion``, ``question`` and ``answer``, ``instruction`` (with
    ``input``) and ``output``. Raises ValueError, which says what is wrong.
    """
    if not isinstance(example, dict):
        raise ValueError(f"an example is an object, not {type(example).__name__}")
    if "messages" in example:
        messages = example["messages"]
        if not isinstance(messages, list) or not messages:
            raise ValueError("'messages' is a list of turns, and not empty")
        turns = [_turn(number, message) for number, message in enumerate(messages)]
        if not any(turn.trained for turn in turns):
            raise ValueError(f"no turn is of '{TRAINED_ROLE}': there is nothing to train on")
        return turns
    for question, answer in PAIRS:
        if question in example and answer in example:
            more = example.get("input", "") if question == "instruction" else ""
            for name, value in ((question, example[question]), (answer, example[answer]), ("input", more)):
                if not isinstance(value, str):
                    raise ValueError(f"'{name}' is a string, not {type(value).__name__}")
            asked = example[question] + (f"\n{more}" if more else "")
            return [Turn("user", asked, False), Turn(TRAINED_ROLE, example[answer], True)]
    known = "messages, " + ", ".join(" with ".join(pair) for pair in PAIRS)
    raise ValueError(f"an example has {known}; this one has {', '.join(map(str, example)) or 'nothing'}")


def _turn(number: int, message: Any) -> Turn:
    if not isinstance(message, dict):
        raise ValueError(f"turn {number} is an object, not {type(message).__name__}")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not isinstance(content, str):
        raise ValueError(f"turn {number} has 'role' and 'content', both strings")
    return Turn(role, content, role == TRAINED_ROLE)


def read_examples(
    path: str | os.PathLike[str], on_read: Callable[[int], object] = lambda position: None
) -> Iterator[tuple[int, list[Turn] | ValueError]]:
    """(line number from 1, its turns or what is wrong with it) of a file of JSON lines; empty lines are left out.

    The file may be compressed with gzip. `on_read` is told how many of its bytes were read. OSError, EOFError: it
    cannot be, or is cut off.
    """
    with open(path, "rb") as file:
        packed = file.read(len(_GZIP)) == _GZIP
        file.seek(0)
        lines = gzip.GzipFile(fileobj=file) if packed else file
        number = 0
        while line := lines.readline(MAX_LINE_BYTES + 1):
            number += 1
            on_read(file.tell())
            if len(line) > MAX_LINE_BYTES:
                yield number, ValueError(f"longer than {MAX_LINE_BYTES} bytes")
                while line and not line.endswith(b"\n"):
                    line = lines.readline(MAX_LINE_BYTES)
                continue
            if not line.strip():
                continue
            try:
                yield number, turns_of(json.loads(line.strip().decode("utf-8")))
            except RecursionError:
                yield number, ValueError("nested too deeply")
            except ValueError as error:  # of JSON, of UTF-8, of ours
                yield number, ValueError(str(error))


def utf8(text: str) -> list[int]:
    """The tokenizer that is built in: a token a byte."""
    return list(text.encode("utf-8", "surrogatepass"))


def write_chat(
    prefix: str | os.PathLike[str],
    inputs: Iterable[str | os.PathLike[str]],
    *,
    encode: Callable[[str], Sequence[int]] = utf8,
    vocabulary: int = 256,
    template: ChatTemplate | None = None,
    end_of_document: int | None = None,
    skip_bad_lines: bool = False,
    overwrite: bool = False,
    on_read: Callable[[int], object] = lambda position: None,
) -> ChatSummary:
    """Writes PREFIX.bin and .idx (an example is a document, its parts sequences), and PREFIX.loss.bin and .idx.

    PREFIX.loss has the same shape and for each token 1 if it is trained on, else 0: what assistants say and how they
    end, but not what comes before; `end_of_document`, where there is one. `keepstep.data.PackedDataset` reads both.
    Either all of it is there afterwards or nothing new.

    Args:
        inputs: files of JSON lines; `turns_of` says what a line holds.
        encode: text to tokens, e.g. ``lambda text: tokenizer.encode(text, add_special_tokens=False).ids``. Each part
            of a turn is encoded by itself, so that the mask is exact.
        vocabulary: tokens are less than this; it chooses the type in the file.
        template: how turns become text; default: ChatML.
        end_of_document: a last token of each example.
        on_read: told now and then how many bytes of all inputs were read.
        skip_bad_lines: leave out and count lines that hold no example; else they are an error.

    Raises:
        KeepstepError: a line that holds no example, by file and line; a token outside of `vocabulary`; a corpus that is
            there already; what the system says of a file.
    """
    prefix = os.fspath(prefix)
    kind = next((kind for kind, most in (("uint16", 1 << 16), ("int32", 1 << 31)) if vocabulary <= most), "int64")
    try:
        tokens = _engine.TokenWriter.create(prefix, kind, overwrite)
        loss = _engine.TokenWriter.create(f"{prefix}.loss", "uint8", True)
    except RuntimeError as error:
        raise KeepstepError(f"write_chat: {error}") from None
    writer = _ChatWriter(tokens, loss, encode, vocabulary, template or ChatTemplate(), end_of_document)
    before = 0
    try:
        for path in map(Path, inputs):
            _add_file(writer, path, skip_bad_lines, partial(_read_too, on_read, before))
            before += path.stat().st_size
        writer.finish(prefix)
    except BaseException as error:
        tokens.discard()  # now: the exception may keep the writers alive for long
        loss.discard()
        if isinstance(error, RuntimeError | OSError) and not isinstance(error, KeepstepError):
            raise KeepstepError(f"write_chat: {error}") from None
        raise
    return writer.summary


@dataclass
class _ChatWriter:
    """Both corpora, and the same shape of them."""

    tokens: _engine.TokenWriter
    loss: _engine.TokenWriter
    encode: Callable[[str], Sequence[int]]
    vocabulary: int
    template: ChatTemplate
    end_of_document: int | None
    summary: ChatSummary = field(default_factory=ChatSummary)

    def add(self, turns: list[Turn]) -> None:
        """An example."""
        for turn in turns:
            self._sequence(self.encode(self.template.before.replace("{role}", turn.role)), False)
            self._sequence(self.encode(turn.text), turn.trained)
            self._sequence(self.encode(self.template.after.replace("{role}", turn.role)), turn.trained)
        if self.end_of_document is not None:
            self._sequence([self.end_of_document], True)
        self.tokens.end_document()
        self.loss.end_document()
        self.summary.examples += 1

    def _sequence(self, part: Sequence[int], trained: bool) -> None:
        if part and not 0 <= min(part) <= max(part) < self.vocabulary:
            raise KeepstepError(
                f"write_chat: tokens from {min(part)} to {max(part)} with vocabulary={self.vocabulary}; say how large "
                "the tokenizer's is"
            )
        self.tokens.add(list(part))
        self.loss.add([int(trained)] * len(part))
        self.summary.tokens += len(part)
        self.summary.trained_tokens += trained * len(part)

    def finish(self, prefix: str) -> None:
        if self.summary.examples == 0:
            raise KeepstepError(f"write_chat: no example in the inputs; nothing is written to '{prefix}'")
        self.loss.finish()  # first: where there is a corpus, its mask is there too
        self.tokens.finish()


def _read_too(on_read: Callable[[int], object], before: int, position: int) -> None:
    on_read(before + position)


def _add_file(writer: _ChatWriter, path: Path, skip: bool, on_read: Callable[[int], object]) -> None:
    try:
        for number, turns in read_examples(path, on_read):
            if isinstance(turns, ValueError):
                _bad(f"{path}:{number}: {turns}", skip, writer.summary)
            else:
                writer.add(turns)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise KeepstepError(f"write_chat: '{path}' cannot be decompressed: {error}") from None


def _bad(what: str, skip: bool, summary: ChatSummary) -> None:
    if not skip:
        raise KeepstepError(f"write_chat: {what} (skip_bad_lines=True leaves such lines out and counts them)")
    summary.skipped_lines += 1
    if len(summary.skipped) < 100:
        summary.skipped.append(what)
