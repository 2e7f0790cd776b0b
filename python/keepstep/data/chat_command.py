"""``keepstep data chat``: a corpus of fine-tuning examples, with its loss mask, from the command line."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict

from keepstep._errors import KeepstepError
from keepstep.data.builder import inputs, tokenizer
from keepstep.data.builder.options import add_end_of_document, add_output, add_tokenizer, check_end_of_document
from keepstep.data.builder.progress import in_time, progress
from keepstep.data.chat import ChatSummary, ChatTemplate, utf8, write_chat

DESCRIPTION = """Makes a corpus of fine-tuning examples, PREFIX.bin and PREFIX.idx, and beside it PREFIX.loss.bin and
PREFIX.loss.idx: which tokens are trained on. Each line of the input is a chat, {"messages": [{"role": "user",
"content": "..."}, ...]}, or a question and its answer (prompt and response or completion, question and answer,
instruction, input and output); with --pairs a question and two answers, {"prompt": "...", "chosen": "...",
"rejected": "..."}, of which the chosen one becomes a document and the rejected one the next. Rows of Arrow and Parquet
files have these as their columns. keepstep.data.PackedDataset and PreferencePairs read the corpus."""


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="keepstep data chat", description=DESCRIPTION, allow_abbrev=False,
        epilog="exit codes: 0 built; 1 it could not be built (nothing new is there); 2 wrong options; 130 Ctrl-C.",
    )  # fmt: skip
    add = parser.add_argument
    add("--input", required=True, nargs="+", action="extend", metavar="PATTERN",
        help="files: JSON lines, also with .gz, Arrow, Parquet; directories of them; patterns in quotes")  # fmt: skip
    add_output(parser, "PREFIX.bin, PREFIX.idx, PREFIX.loss.bin, PREFIX.loss.idx")
    add_tokenizer(parser)
    add("--before", default=ChatTemplate.before, metavar="TEXT", help="of a turn; {role} is its role (default: ChatML)")
    add("--after", default=ChatTemplate.after, metavar="TEXT", help="of a turn; trained on where the turn is")
    add_end_of_document(parser, "example")
    add("--pairs", action="store_true", help="each line has a chosen and a rejected answer")
    add("--on-error", default="stop", choices=("stop", "skip"),
        help="lines that hold no example: stop and name file and line, or skip and count (default "
        "%(default)s)")  # fmt: skip
    add("--force", action="store_true", help="replace a corpus that is there")
    add("--quiet", action="store_true", help="show no progress")
    add("--json", action="store_true", help="print the summary as one JSON object")
    found = parser.parse_args(arguments)
    check_end_of_document(parser, found)
    return found


def _encoder(encoding: tokenizer.Encoding) -> Callable[[str], list[int]]:
    if encoding.tokenizer == tokenizer.BYTES:
        return utf8
    loaded = tokenizer.load(encoding.tokenizer)

    def encode(text: str) -> list[int]:
        ids: list[int] = loaded.encode(text, add_special_tokens=False).ids
        return ids

    return encode


def _build(options: argparse.Namespace) -> ChatSummary:
    encoding = tokenizer.choose(options.tokenizer, append_eod=options.append_eod, eod=options.eod)
    found = inputs.find(tuple(options.input), "auto")
    for file in found.files:
        if file.compression == "zstd":
            raise KeepstepError(f"'{file.path}' is compressed with zstd, which `keepstep data chat` does not read")
    os.makedirs(os.path.dirname(os.path.abspath(options.out)), exist_ok=True)
    with progress("reading", found.bytes, 0, options.quiet) as shown:
        return write_chat(
            options.out, [file.path for file in found.files], encode=_encoder(encoding), vocabulary=encoding.vocabulary,
            template=ChatTemplate(options.before, options.after),
            end_of_document=encoding.eod if encoding.eod >= 0 else None,
            pairs=options.pairs, skip_bad_lines=options.on_error == "skip", overwrite=options.force,
            on_read=shown.update,
        )  # fmt: skip


def main(arguments: list[str]) -> int:
    options = _options(arguments)
    began = time.monotonic()
    try:
        summary = _build(options)
    except (KeepstepError, RuntimeError, OSError) as error:
        print(f"keepstep data chat: {error}\nNothing new is at {options.out}.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"keepstep data chat: stopped; nothing new is at {options.out}", file=sys.stderr)
        return 130
    if options.json:
        print(json.dumps({"prefix": options.out, **asdict(summary)}))
        return 0
    share = 100 * summary.trained_tokens / max(1, summary.tokens)
    print(
        f"{options.out}: {summary.examples:,} examples, {summary.tokens:,} tokens, {summary.trained_tokens:,} of them "
        f"trained on ({share:.0f}%), in {in_time(time.monotonic() - began)}"
    )
    if summary.skipped_lines:
        print(f"left out: {summary.skipped_lines:,} lines that hold no example")
        for text in summary.skipped[:5]:
            print(f"  {text}")
    return 0
