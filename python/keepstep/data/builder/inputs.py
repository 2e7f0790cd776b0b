"""The input: the files that patterns name, their formats, and how they are divided into parts.

The parts depend only on the input, never on the number of workers: a build may continue with more or fewer workers, and
the corpus has the same bytes.
"""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field

from keepstep._errors import KeepstepError
from keepstep.data.builder import columns

MIB = 1 << 20
LEAST_PART = 2 * MIB
MAX_PART = 256 * MIB
MAX_PIECES = 10_000  # per part
PARTS = 64  # at least this many for a large input, so all workers end at about the same time

_BY_NAME = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".jsonlines": "jsonl", ".json": "json", ".parquet": "parquet",
    ".pq": "parquet", ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow",
}  # fmt: skip
_COMPRESSED = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_LINES = ("jsonl", "text-lines")
COLUMNS = ("parquet", "arrow")
_SNIFF = 8192


@dataclass(frozen=True)
class InputFile:
    path: str
    format: str  # jsonl, json, text, text-lines, parquet, arrow
    compression: str  # none, gzip, zstd
    size: int
    mtime_ns: int


@dataclass(frozen=True)
class Piece:
    """A file, or a range of it: bytes of lines, row groups of Parquet."""

    path: str
    format: str
    compression: str
    bytes: int  # its weight in the progress display
    range: tuple[int, int] | None = None


@dataclass
class Found:
    files: list[InputFile] = field(default_factory=list)
    binary: int = 0  # left-out files in directories

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)


def format_of(path: str) -> str:
    """What the name of a file says that is in it: "text" if nothing."""
    return _BY_NAME.get(os.path.splitext(path.lower())[1], "text")


def _below(folder: str) -> Iterator[str]:
    def refuse(error: OSError) -> None:
        raise KeepstepError(f"cannot look into '{error.filename}': {error.strerror}")

    for root, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = os.path.join(root, name)
            if not name.startswith(".") and os.path.isfile(path):
                yield path


def _look(path: str, wanted: str, in_directory: bool) -> InputFile | None:
    """Determines format and compression of a file; None for a binary file in a directory."""
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            start = file.read(_SNIFF)
    except OSError as error:
        raise KeepstepError(f"cannot read '{path}': {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise KeepstepError(f"'{path}' is no regular file")
    name = os.path.basename(path).lower()
    bare, suffix = os.path.splitext(name)
    compression = next((kind for magic, kind in _MAGIC.items() if start.startswith(magic)), "none")
    if suffix in _COMPRESSED:
        if compression != _COMPRESSED[suffix] and start:
            raise KeepstepError(
                f"'{path}' is named {suffix} and has no {_COMPRESSED[suffix]} data; rename it, or leave it out"
            )
        if not start:
            raise KeepstepError(f"'{path}' is named {suffix} and is empty; was it copied completely?")
        name, suffix = bare, os.path.splitext(bare)[1]
    kind = wanted if wanted != "auto" else _BY_NAME.get(suffix, "text")
    if kind in COLUMNS:
        if compression != "none":
            raise KeepstepError(f"'{path}': {kind} files are compressed inside; unpack it first ({compression})")
    elif in_directory and compression == "none" and b"\0" in start:
        return None
    return InputFile(path, kind, compression, status.st_size, status.st_mtime_ns)


def find(patterns: tuple[str, ...], wanted: str) -> Found:
    """All files, each once: in the order of the patterns, and by name within a pattern. Errors name the file."""
    found = Found()
    seen = set()
    for pattern in patterns:
        names = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern, recursive=True))
        if not names:
            what = "nothing matches" if glob.has_magic(pattern) else "there is no file or directory"
            raise KeepstepError(f"--input: {what} '{pattern}' (seen from {os.getcwd()})")
        for name in names:
            in_directory = os.path.isdir(name)
            for path in _below(name) if in_directory else [name]:
                real = os.path.abspath(path)
                if real in seen:
                    continue
                seen.add(real)
                file = _look(path, wanted, in_directory)
                if file is None:
                    found.binary += 1
                else:
                    found.files.append(file)
    if not found.files:
        left_out = f" ({found.binary} binary files are left out)" if found.binary else ""
        raise KeepstepError(f"--input: no file of text in {', '.join(map(repr, patterns))}{left_out}")
    return found


def _pieces(file: InputFile, target: int) -> Iterator[Piece]:
    if file.format in _LINES and file.compression == "none" and file.size > target * 3 // 2:
        count = -(-file.size // target)
        for number in range(count):
            begin, end = file.size * number // count, file.size * (number + 1) // count
            yield Piece(file.path, file.format, file.compression, end - begin, (begin, end))
    elif file.format == "parquet" and file.size > target * 3 // 2:
        groups = columns.row_groups(file.path)
        count = max(1, min(groups, -(-file.size // target)))
        for number in range(count):
            begin, end = groups * number // count, groups * (number + 1) // count
            size = file.size * (number + 1) // count - file.size * number // count
            yield Piece(file.path, file.format, file.compression, size, (begin, end))
    else:
        yield Piece(file.path, file.format, file.compression, file.size)


def parts(files: list[InputFile]) -> list[list[Piece]]:
    """Divides the input, in order, into parts of 2 to 256 MiB, as far as its files can be split."""
    target = min(MAX_PART, max(LEAST_PART, sum(file.size for file in files) // PARTS))
    made: list[list[Piece]] = []
    current: list[Piece] = []
    size = 0
    for file in files:
        for piece in _pieces(file, target):
            current.append(piece)
            size += piece.bytes
            if size >= target or len(current) >= MAX_PIECES:
                made.append(current)
                current, size = [], 0
    if current:
        made.append(current)
    return made
