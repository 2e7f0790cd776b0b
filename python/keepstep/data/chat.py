"""Fine-tuning examples from JSON lines: a corpus, and a mask of the tokens that are trained on."""

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
    """Yields (line number from 1, its turns or its error) for a file of JSON lines; skips empty lines.

    The file may be compressed with gzip. Calls `on_read` with the number of its bytes read. OSError, EOFError: it
    cannot be read, or is truncated.
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
            except ValueError as error:  # from JSON, from UTF-8, or ours
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
    skip_bad_lines: bool = False,
    overwrite: bool = False,
    on_read: Callable[[int], object] = lambda position: None,
) -> ChatSummary:
    """Writes PREFIX.bin and .idx (an example is a document, its parts are sequences), and PREFIX.loss.bin and .idx.

    PREFIX.loss has the same shape, with 1 for each token that is trained on, else 0. Trained on are the text of
    assistants and what ends it, but not what precedes it; also `end_of_document`, if given.
    `keepstep.data.PackedDataset` reads both. Afterwards either all of it exists or nothing new.

    Args:
        inputs: files of JSON lines; see `turns_of` for the contents of a line.
        encode: text to tokens, e.g. ``lambda text: tokenizer.encode(text, add_special_tokens=False).ids``. Each part
            of a turn is encoded separately, so the mask is exact.
        vocabulary: all tokens are less than this; determines the type in the file.
        template: how turns become text; default: ChatML.
        end_of_document: a token to append to each example.
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
    writer = _ChatWriter(tokens, loss, encode, vocabulary, template or ChatTemplate(), end_of_document)
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
    summary: ChatSummary = field(default_factory=ChatSummary)

    def add(self, turns: list[Turn]) -> None:
        """Adds an example."""
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
        self.loss.finish()  # first, so a corpus never exists without its mask
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
