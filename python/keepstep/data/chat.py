"""Fine-tuning examples from JSON lines and tables: a corpus, and a mask of the tokens that are trained on."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from keepstep import _engine
from keepstep._errors import KeepstepError
from keepstep.data.builder.columns import whole_rows
from keepstep.data.builder.inputs import COLUMNS, format_of

MAX_LINE_BYTES = 64 << 20
_GZIP = b"\x1f\x8b"
TRAINED_ROLE = "assistant"
# The field names of question and answer, in the order in which they are tried.
PAIRS = (("prompt", "response"), ("prompt", "completion"), ("question", "answer"), ("instruction", "output"))


@dataclass(frozen=True)
class Turn:
    """One side's message. `trained`: the model learns to produce it; otherwise it only reads it."""

    role: str
    text: str
    trained: bool


@dataclass(frozen=True)
class ChatTemplate:
    """How turns become text: ``before`` + text + ``after``, with ``{role}`` replaced in both. Default: ChatML.

    In an assistant's turn, its text and `after` are trained on, so the model learns to end its turn.
    """

    before: str = "<|im_start|>{role}\n"
    after: str = "<|im_end|>\n"


@dataclass
class ChatSummary:
    """What `write_chat` wrote.

    Attributes:
        examples: number written, each a document.
        tokens, trained_tokens: all tokens, and those that are trained on.
        skipped: the first 100 lines without a valid example, as file:line and what is wrong.
        skipped_lines: number of all such lines.
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
    ``input``) and ``output``. Raises ValueError that says what is wrong.
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


def pair_of(example: Any) -> tuple[list[Turn], list[Turn]]:
    """The turns of the answer that was chosen, and of the one that was rejected. Only the last turn is trained on.

    ``chosen`` and ``rejected`` are texts, with the question in ``prompt``, or lists of turns: whole conversations, or
    what follows ``prompt``. Raises ValueError that says what is wrong.
    """
    if not isinstance(example, dict) or not ("chosen" in example and "rejected" in example):
        has = ", ".join(map(str, example)) if isinstance(example, dict) else type(example).__name__
        raise ValueError(f"a pair has chosen and rejected, and mostly prompt; this one has {has or 'nothing'}")
    prompt = example.get("prompt", [])
    before = [Turn("user", prompt, False)] if isinstance(prompt, str) else _read("prompt", prompt)
    return _answered(example, "chosen", before), _answered(example, "rejected", before)


def _read(name: str, messages: Any) -> list[Turn]:
    """Turns that are only read."""
    if not isinstance(messages, list):
        raise ValueError(f"'{name}' is a string or a list of turns, not {type(messages).__name__}")
    return [replace(_turn(number, message), trained=False) for number, message in enumerate(messages)]


def _answered(example: dict[str, Any], name: str, before: list[Turn]) -> list[Turn]:
    answer = example[name]
    if isinstance(answer, str):
        if not before:
            raise ValueError(f"'{name}' is a string, and there is no 'prompt' that it answers")
        return [*before, Turn(TRAINED_ROLE, answer, True)]
    turns = _read(name, answer)
    if not turns or turns[-1].role != TRAINED_ROLE:
        raise ValueError(f"the last turn of '{name}' is not of '{TRAINED_ROLE}'")
    turns[-1] = replace(turns[-1], trained=True)
    return turns if turns[0].role != TRAINED_ROLE else before + turns


def _turn(number: int, message: Any) -> Turn:
    if not isinstance(message, dict):
        raise ValueError(f"turn {number} is an object, not {type(message).__name__}")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not isinstance(content, str):
        raise ValueError(f"turn {number} has 'role' and 'content', both strings")
    return Turn(role, content, role == TRAINED_ROLE)


def read_examples(
    path: str | os.PathLike[str], on_read: Callable[[int], object] = lambda position: None
) -> Iterator[tuple[int, Any]]:
    """Yields (number from 1, what is there or a ValueError) for each line of JSON or row of a table; skips empty lines.

    JSON lines may be compressed with gzip. Tables are files whose name ends in .arrow, .feather or .parquet. Calls
    `on_read` with the number of bytes read. OSError, EOFError: the file cannot be read, or is truncated.
    """
    format = format_of(os.fspath(path))
    if format in COLUMNS:
        yield from enumerate(whole_rows(os.fspath(path), format), start=1)
        return
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
                yield number, json.loads(line.strip().decode("utf-8"))
            except RecursionError:
                yield number, ValueError("nested too deeply")
            except ValueError as error:  # from JSON or from UTF-8
                yield number, ValueError(str(error))


def utf8(text: str) -> list[int]:
    """The built-in tokenizer: one token per byte."""
    return list(text.encode("utf-8", "surrogatepass"))


def write_chat(
    prefix: str | os.PathLike[str],
    inputs: Iterable[str | os.PathLike[str]],
    *,
    encode: Callable[[str], Sequence[int]] = utf8,
    vocabulary: int = 256,
    template: ChatTemplate | None = None,
    end_of_document: int | None = None,
    pairs: bool = False,
    skip_bad_lines: bool = False,
    overwrite: bool = False,
    on_read: Callable[[int], object] = lambda position: None,
) -> ChatSummary:
    """Writes PREFIX.bin and .idx (an example is a document, its parts are sequences), and PREFIX.loss.bin and .idx.

    PREFIX.loss has the same shape, with 1 for each token that is trained on, else 0. Trained on are the text of
    assistants and what ends it, but not what precedes it; also `end_of_document`, if given.
    `keepstep.data.PackedDataset` reads both. Afterwards either all of it exists or nothing new.

    Args:
        inputs: files of JSON lines, or tables (.arrow, .feather, .parquet); see `turns_of` for the contents of a line
            or row.
        encode: text to tokens, e.g. ``lambda text: tokenizer.encode(text, add_special_tokens=False).ids``. Each part
            of a turn is encoded separately, so the mask is exact.
        vocabulary: all tokens are less than this; determines the type in the file.
        template: how turns become text; default: ChatML.
        end_of_document: a token to append to each example.
        pairs: each line has two answers, see `pair_of`: the chosen one becomes a document, and the rejected one the
            next. `keepstep.data.PreferencePairs` reads them.
        on_read: called now and then with the number of bytes read of all inputs.
        skip_bad_lines: skip and count lines without a valid example; otherwise they are an error.

    Raises:
        KeepstepError: a line without a valid example, by file and line; a token outside `vocabulary`; a corpus that
            already exists; a file error from the system.
    """
    prefix = os.fspath(prefix)
    kind = next((kind for kind, most in (("uint16", 1 << 16), ("int32", 1 << 31)) if vocabulary <= most), "int64")
    try:
        tokens = _engine.TokenWriter.create(prefix, kind, overwrite)
        loss = _engine.TokenWriter.create(f"{prefix}.loss", "uint8", True)
    except RuntimeError as error:
        raise KeepstepError(f"write_chat: {error}") from None
    writer = _ChatWriter(tokens, loss, encode, vocabulary, template or ChatTemplate(), end_of_document, pairs)
    before = 0
    try:
        for path in map(Path, inputs):
            _add_file(writer, path, skip_bad_lines, partial(_read_too, on_read, before))
            before += path.stat().st_size
        writer.finish(prefix)
    except BaseException as error:
        tokens.discard()  # now, as the exception may keep the writers alive for long
        loss.discard()
        if isinstance(error, RuntimeError | OSError) and not isinstance(error, KeepstepError):
            raise KeepstepError(f"write_chat: {error}") from None
        raise
    return writer.summary


@dataclass
class _ChatWriter:
    """Writes both corpora in the same shape."""

    tokens: _engine.TokenWriter
    loss: _engine.TokenWriter
    encode: Callable[[str], Sequence[int]]
    vocabulary: int
    template: ChatTemplate
    end_of_document: int | None
    pairs: bool
    summary: ChatSummary = field(default_factory=ChatSummary)

    def add(self, example: Any) -> None:
        """Adds an example, which is one document, or two if it is a pair. ValueError: it is none."""
        if self.pairs:
            for turns in pair_of(example):
                self._document(turns)
        else:
            self._document(turns_of(example))
        self.summary.examples += 1

    def _document(self, turns: list[Turn]) -> None:
        for turn in turns:
            self._sequence(self.encode(self.template.before.replace("{role}", turn.role)), False)
            self._sequence(self.encode(turn.text), turn.trained)
            self._sequence(self.encode(self.template.after.replace("{role}", turn.role)), turn.trained)
        if self.end_of_document is not None:
            self._sequence([self.end_of_document], True)
        self.tokens.end_document()
        self.loss.end_document()

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
        self.loss.finish()  # first, so a corpus never exists without its mask
        self.tokens.finish()


def _read_too(on_read: Callable[[int], object], before: int, position: int) -> None:
    on_read(before + position)


def _add_file(writer: _ChatWriter, path: Path, skip: bool, on_read: Callable[[int], object]) -> None:
    try:
        for number, example in read_examples(path, on_read):
            try:
                if isinstance(example, ValueError):
                    raise example
                writer.add(example)
            except ValueError as error:
                _bad(f"{path}:{number}: {error}", skip, writer.summary)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise KeepstepError(f"write_chat: '{path}' cannot be decompressed: {error}") from None


def _bad(what: str, skip: bool, summary: ChatSummary) -> None:
    if not skip:
        raise KeepstepError(f"write_chat: {what} (skip_bad_lines=True leaves such lines out and counts them)")
    summary.skipped_lines += 1
    if len(summary.skipped) < 100:
        summary.skipped.append(what)
