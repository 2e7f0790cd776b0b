"""``keepstep data info``, ``verify`` and ``sample``: the contents of a corpus."""

from __future__ import annotations

import argparse
import array
import json
import os
import random
import sys
from typing import Any

from keepstep import _engine
from keepstep._errors import KeepstepError
from keepstep.data.builder import tokenizer
from keepstep.data.builder.progress import in_bytes, progress

STEP_BYTES = 32 << 20


def _parser(name: str, what: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"keepstep data {name}", description=what, allow_abbrev=False)
    parser.add_argument("prefix", metavar="PREFIX", help="the corpus: PREFIX.bin and PREFIX.idx")
    return parser


def _fail(name: str, error: Exception) -> int:
    print(f"keepstep data {name}: {error}", file=sys.stderr)
    return 1


def _about(corpus: _engine.TokenCorpus) -> dict[str, Any]:
    """PREFIX.build.json, the description that `keepstep data build` wrote; empty for other corpora."""
    try:
        with open(f"{corpus.prefix}.build.json", encoding="utf-8") as file:
            found = json.load(file)
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise KeepstepError(f"'{corpus.prefix}.build.json' cannot be read: {error}") from error
    return found if isinstance(found, dict) else {}


def info(arguments: list[str]) -> int:
    parser = _parser("info", "Shows what a corpus contains. Reads its index, not its tokens.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    try:
        corpus = _engine.TokenCorpus(options.prefix)
        shortest, longest, empty = _engine.sequence_lengths(corpus)
        about = _about(corpus)
    except (RuntimeError, OSError) as error:
        return _fail("info", error)
    facts = {
        "prefix": corpus.prefix, "dtype": corpus.type, "bytes": corpus.bytes,
        "index_bytes": os.path.getsize(f"{corpus.prefix}.idx"), "documents": corpus.documents,
        "sequences": corpus.sequences, "tokens": corpus.tokens, "shortest": shortest, "longest": longest,
        "empty_sequences": empty, "build": about or None,
    }  # fmt: skip
    if options.json:
        print(json.dumps(facts))
        return 0
    mean = corpus.tokens / corpus.sequences if corpus.sequences else 0
    print(f"{corpus.prefix}: {corpus.tokens:,} tokens of {corpus.type} ({in_bytes(corpus.bytes)})")
    print(
        f"documents  {corpus.documents:,}"
        + (f" of {corpus.sequences:,} sequences" if corpus.sequences != corpus.documents else "")
    )
    print(
        f"tokens     {mean:,.1f} a sequence; {shortest:,} to {longest:,}" + (f"; {empty:,} have none" if empty else "")
    )
    if about:
        print(f"tokenizer  {about.get('tokenizer')}, {about.get('vocabulary', 0):,} tokens"
              + (f", {about['eod']} ends a document" if about.get("eod", -1) >= 0 else ""))  # fmt: skip
        print(f"built from {about.get('files', 0):,} files ({in_bytes(about.get('input_bytes', 0))})")
    return 0


def _problems(
    corpus: _engine.TokenCorpus, scan: _engine.TokenScan, vocabulary: int | None, checksum: str | None
) -> list[str]:
    found = []
    indexed = corpus.tokens * _engine.token_bytes(corpus.type)
    if indexed != corpus.bytes:
        more = "not in any sequence" if indexed < corpus.bytes else "in several sequences"
        found.append(f"'{corpus.prefix}.bin' has {corpus.bytes:,} bytes, the sequences {indexed:,}: some are {more}")
    if corpus.tokens == 0:
        return [*found, f"'{corpus.prefix}' has no token"]
    if scan.least < 0:
        found.append(f"a token is {scan.least}; none may be negative")
    if vocabulary is not None and scan.greatest >= vocabulary:
        found.append(f"a token is {scan.greatest}; the vocabulary ends at {vocabulary - 1}")
    if checksum is not None and checksum != f"{scan.checksum:016x}":
        found.append(
            f"'{corpus.prefix}.bin' is not what was built: its checksum is {scan.checksum:016x}, "
            f"{checksum} was written down"
        )
    return found


def verify(arguments: list[str]) -> int:
    parser = _parser(
        "verify",
        "Reads all of a corpus: index, every token, and, where `keepstep data build` made it, the checksum. Exit "
        "code 1 if anything is wrong.",
    )
    parser.add_argument("--vocabulary", type=int, metavar="N", help="no token may be N or more (default: as built)")
    options = parser.parse_args(arguments)
    try:
        corpus = _engine.TokenCorpus(options.prefix)
        about = _about(corpus)
        scan = _engine.TokenScan(corpus)
        with progress("reading", corpus.bytes) as shown:
            while scan.step(STEP_BYTES):
                shown.update(scan.position)
    except (RuntimeError, OSError) as error:
        return _fail("verify", error)
    vocabulary = options.vocabulary if options.vocabulary is not None else about.get("vocabulary")
    problems = _problems(corpus, scan, vocabulary, about.get("checksum"))
    for problem in problems:
        print(f"keepstep data verify: {problem}", file=sys.stderr)
    if problems:
        return 1
    compared = "" if about else "; no checksum to compare with (not built by keepstep data build)"
    print(
        f"{corpus.prefix}: good. {corpus.documents:,} documents, {corpus.tokens:,} tokens of {corpus.type} "
        f"({scan.least} to {scan.greatest}){compared}"
    )
    return 0


def tokens_of(corpus: _engine.TokenCorpus, document: int, most: int) -> tuple[list[int], int]:
    """The first `most` tokens of a document, and its total number of tokens."""
    begin, end = corpus.document_start(document), corpus.document_start(document + 1)
    out = array.array("q", bytes(8 * min(end - begin, most)))
    corpus.read([begin], len(out), out.buffer_info()[0])
    return out.tolist(), end - begin


def _decoder(name: str, digest: str | None) -> Any:
    """Tokens to text."""
    if name == tokenizer.BYTES:
        return lambda tokens: bytes(t for t in tokens if 0 <= t < 256).decode(errors="replace")
    loaded = tokenizer.load(name)
    if digest is not None and tokenizer.digest_of(name) != digest:
        raise KeepstepError(
            f"'{name}' has changed since the corpus was built; name the one it was built with (--tokenizer)"
        )
    return lambda tokens: loaded.decode(tokens, skip_special_tokens=False)


def sample(arguments: list[str]) -> int:
    parser = _parser("sample", "Shows documents of a corpus, at random or one by its number.")
    parser.add_argument("--count", type=int, default=3, help="how many documents (default %(default)s)")
    parser.add_argument("--document", type=int, metavar="N", help="show document N, counted from 0")
    parser.add_argument("--seed", type=int, default=0, help="seed for choosing documents (default %(default)s)")
    parser.add_argument(
        "--tokens", type=int, default=100, help="most tokens to show of each document (default %(default)s)"
    )
    parser.add_argument(
        "--tokenizer", metavar="bytes|FILE", help="tokenizer to show text with (default: the one that built the corpus)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    options = parser.parse_args(arguments)
    try:
        corpus = _engine.TokenCorpus(options.prefix)
        about = _about(corpus)
        name = options.tokenizer or about.get("tokenizer")
        decode = _decoder(name, about.get("digest") if not options.tokenizer else None) if name else None
        numbers = random.Random(options.seed).sample(
            range(corpus.documents), min(max(options.count, 0), corpus.documents)
        )
        if options.document is not None:
            if not 0 <= options.document < corpus.documents:
                raise KeepstepError(
                    f"no document {options.document}; '{corpus.prefix}' has {corpus.documents}, from 0 on"
                )
            numbers = [options.document]
        for number in sorted(numbers):
            tokens, length = tokens_of(corpus, number, max(1, options.tokens))
            text = decode(tokens) if decode else None
            if options.json:
                print(json.dumps({"document": number, "length": length, "tokens": tokens, "text": text}))
            else:
                shown = text if text is not None else " ".join(map(str, tokens))
                print(f"--- document {number} of {corpus.documents:,}: {length:,} tokens" + (
                    f", the first {len(tokens)}" if len(tokens) < length else ""))  # fmt: skip
                print(shown)
    except BrokenPipeError:
        raise  # not our error (_command.py)
    except (RuntimeError, OSError) as error:
        return _fail("sample", error)
    return 0
