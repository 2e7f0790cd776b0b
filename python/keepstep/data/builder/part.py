"""Builds one part: a small corpus, PREFIX.bin and PREFIX.idx, and its counts, PREFIX.json, written last."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from keepstep import _engine
from keepstep.data.builder.columns import ColumnReader
from keepstep.data.builder.inputs import COLUMNS, Piece
from keepstep.data.builder.tokenizer import BYTES, Encoder, Encoding

STEP_BYTES = 8 << 20  # bytes of text between two progress reports
STEP_TOKENIZED = 1 << 20
MAX_COMPLAINTS = 5


@dataclass
class Counts:
    """The counts of one part, or of all parts."""

    documents: int = 0
    tokens: int = 0
    text_bytes: int = 0
    empty: int = 0
    unreadable: int = 0
    complaints: list[str] = field(default_factory=list)
    checksum: int = 0  # of a part's tokens, compared when the parts are joined

    def add(self, other: Counts) -> None:
        self.documents += other.documents
        self.tokens += other.tokens
        self.text_bytes += other.text_bytes
        self.empty += other.empty
        self.unreadable += other.unreadable
        self.complaints = (self.complaints + other.complaints)[:MAX_COMPLAINTS]


def write_json(path: str, value: object) -> None:
    """Writes atomically."""
    with open(f"{path}.partial", "w", encoding="utf-8") as file:
        json.dump(value, file)
    os.rename(f"{path}.partial", path)


def prefix_of(folder: str, number: int) -> str:
    return os.path.join(folder, f"{number:06d}")


def finished(folder: str, number: int) -> Counts | None:
    """The counts of a part, if it is complete."""
    try:
        with open(f"{prefix_of(folder, number)}.json", encoding="utf-8") as file:
            return Counts(**json.load(file))
    except (FileNotFoundError, ValueError, TypeError):  # a part that cannot be read is built again
        return None


def _open(piece: Piece, text_field: str, skip: bool) -> _engine.DocumentReader | ColumnReader:
    if piece.format in COLUMNS:
        return ColumnReader(piece.path, piece.format, piece.range, text_field, skip, piece.bytes)
    return _engine.DocumentReader.open(piece.path, piece.format, piece.compression, piece.range, text_field, skip)


class PartBuilder:
    """Builds parts one at a time in one process; loads the tokenizer once."""

    def __init__(self, folder: str, encoding: Encoding, text_field: str, skip: bool) -> None:
        self._folder, self._encoding, self._field, self._skip = folder, encoding, text_field, skip
        self._encoder = Encoder(encoding) if encoding.tokenizer != BYTES else None

    def _step(self, reader: _engine.DocumentReader | ColumnReader, writer: _engine.TokenWriter) -> bool:
        if self._encoder is None:
            return reader.copy_to(writer, self._encoding.eod, STEP_BYTES)
        texts = reader.take(STEP_TOKENIZED)
        _engine.add_documents(writer, self._encoder(texts))
        return bool(texts)

    def build(self, number: int, pieces: list[Piece], report: Callable[[int], None]) -> Counts:
        """Builds a part. Calls `report` with the bytes of the pieces read so far. RuntimeError, OSError: it failed."""
        prefix = prefix_of(self._folder, number)
        writer = _engine.TokenWriter.create(prefix, self._encoding.dtype, True)
        counts = Counts()
        before = 0
        for piece in pieces:
            reader = _open(piece, self._field, self._skip)
            first = piece.range[0] if piece.range and piece.format not in COLUMNS else 0
            while self._step(reader, writer):
                report(before + min(max(reader.position - first, 0), piece.bytes))
            counts.add(Counts(0, 0, reader.text_bytes, reader.empty, reader.unreadable, list(reader.complaints)))
            counts.empty += reader.documents  # those with tokens are subtracted below
            before += piece.bytes
        writer.finish(durable=False)
        counts.documents, counts.tokens, counts.checksum = writer.documents, writer.tokens, writer.checksum
        counts.empty -= writer.documents
        write_json(f"{prefix}.json", asdict(counts))
        return counts
