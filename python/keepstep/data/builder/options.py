"""The options of ``keepstep data build``, and those it shares with ``keepstep data chat``."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass

from keepstep.data.builder.tokenizer import BYTES

FORMATS = ("auto", "jsonl", "json", "text", "text-lines", "parquet", "arrow")
TYPES = ("uint8", "int8", "int16", "uint16", "int32", "int64")

DESCRIPTION = """Makes a corpus of tokens, PREFIX.bin and PREFIX.idx, from files of text: JSON lines and JSON (also
compressed with gzip or zstd), Parquet, Arrow and Feather, plain text, directories of source files. Documents keep the
order of the input. A build that is stopped or killed goes on where it was when the same command is given again; the
corpus appears when all of it is there."""

EPILOG = """exit codes: 0 built; 1 it could not be built (nothing new is there; finished parts are kept);
2 wrong options; 130 stopped by Ctrl-C."""


@dataclass(frozen=True)
class BuildOptions:
    """The options as given, checked as far as possible without reading the input."""

    inputs: tuple[str, ...]
    out: str  # without .bin or .idx
    tokenizer: str  # BYTES, or the path of a tokenizer.json
    field: str
    format: str
    append_eod: bool
    eod: str | None  # a number, or a token of the tokenizer
    special_tokens: bool
    dtype: str | None
    skip: bool
    workers: int
    force: bool
    quiet: bool
    json: bool


def _prefix(text: str) -> str:
    prefix = text
    for suffix in (".bin", ".idx"):
        prefix = prefix.removesuffix(suffix)
    if not os.path.basename(prefix):
        raise argparse.ArgumentTypeError(f"'{text}': a prefix, as in folder/corpus, is needed")
    return prefix


def add_output(parser: argparse.ArgumentParser, files: str) -> None:
    """Adds --out, which drops a trailing .bin or .idx. `files`: what is written, for the help."""
    parser.add_argument("--out", required=True, type=_prefix, metavar="PREFIX", help=f"output prefix: writes {files}")


def add_tokenizer(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tokenizer", default=BYTES, metavar="bytes|FILE",
        help="'bytes', or a tokenizer.json of Hugging Face tokenizers (default %(default)s)",
    )  # fmt: skip


def add_end_of_document(parser: argparse.ArgumentParser, what: str) -> None:
    """Adds --append-eod and --eod, which `check_end_of_document` checks. `what`: the thing that gets an end token."""
    parser.add_argument("--append-eod", action="store_true", help=f"append an end-of-document token to each {what}")
    parser.add_argument(
        "--eod",
        metavar="TOKEN",
        help="the end-of-document token: a number, or a token of the tokenizer (default for bytes: 256)",
    )


def check_end_of_document(parser: argparse.ArgumentParser, found: argparse.Namespace) -> None:
    """Ends the process, like any wrong option, if --eod is given alone."""
    if found.eod is not None and not found.append_eod:
        parser.error("--eod says which token --append-eod appends; give both")


def _workers(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 1024:
        raise argparse.ArgumentTypeError(f"{number} workers; 1 to 1024 are possible")
    return number


def parse(arguments: list[str]) -> BuildOptions:
    """Exits with code 2 if the options are wrong, like argparse."""
    parser = argparse.ArgumentParser(
        prog="keepstep data build", description=DESCRIPTION, epilog=EPILOG, allow_abbrev=False
    )
    add = parser.add_argument
    add("--input", required=True, nargs="+", action="extend", metavar="PATTERN",
        help="files, directories, or quoted patterns ('shards/**/*.jsonl.gz'). Directories are read recursively, "
        "without hidden and binary files")  # fmt: skip
    add_output(parser, "PREFIX.bin, PREFIX.idx, PREFIX.build.json")
    add_tokenizer(parser)
    add("--field", default="text", help="JSON field or column that holds the text (default %(default)s)")
    add("--format", default="auto", choices=FORMATS,
        help="format of all inputs. auto goes by their names: .jsonl .ndjson .json .parquet .arrow .feather, also with "
        ".gz or .zst; anything else is text, one document per file. text-lines: one document per line")  # fmt: skip
    add_end_of_document(parser, "document")
    add("--special-tokens", action="store_true", help="also keep special tokens that the tokenizer adds itself (<s>)")
    add("--dtype", choices=TYPES, help="type of tokens in the file (default: the narrowest that holds the vocabulary)")
    add("--on-error", default="stop", choices=("stop", "skip"),
        help="on an unreadable document: stop and name its file and line, or skip and count it (default "
        "%(default)s)")  # fmt: skip
    add(
        "--workers",
        type=_workers,
        default=len(os.sched_getaffinity(0)),
        help="number of processes (default: one per CPU, %(default)s)",
    )
    add("--force", action="store_true", help="replace an existing corpus, or one begun with other options")
    add("--quiet", action="store_true", help="show no progress")
    add("--json", action="store_true", help="print the summary as one JSON object")
    found = parser.parse_args(arguments)
    check_end_of_document(parser, found)
    if found.special_tokens and found.tokenizer == BYTES:
        parser.error("--special-tokens: bytes have none")
    return BuildOptions(
        inputs=tuple(found.input), out=found.out, tokenizer=found.tokenizer, field=found.field, format=found.format,
        append_eod=found.append_eod, eod=found.eod, special_tokens=found.special_tokens, dtype=found.dtype,
        skip=found.on_error == "skip", workers=found.workers, force=found.force, quiet=found.quiet, json=found.json,
    )  # fmt: skip
