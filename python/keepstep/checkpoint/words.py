"""Shared formatting and options of the commands of ``keepstep ckpt``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from keepstep.data.builder.progress import in_bytes, in_time

__all__ = ["age", "in_bytes", "key_options", "key_words", "parser", "shape", "table"]


def parser(name: str, what: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(prog=f"keepstep ckpt {name}", description=what, allow_abbrev=False)


def key_options(options_parser: argparse.ArgumentParser) -> None:
    options_parser.add_argument(
        "--token-file", metavar="FILE", help="the job token, for memory://HOST:PORT; default: KEEPSTEP_TOKEN"
    )
    options_parser.add_argument(
        "--rdzv-id", metavar="ID", help="the job's --rdzv-id, for memory://HOST:PORT, if it has one"
    )


def key_words(options: argparse.Namespace) -> list[str]:
    """The same options for ``keepstep ask``."""
    given = {"--token-file": options.token_file, "--rdzv-id": options.rdzv_id}
    return [word for option, value in given.items() if value is not None for word in (option, value)]


def age(seconds: float) -> str:
    """``3 min 20 s``, ``2 days``."""
    if seconds < 0:
        return "0 s"
    return in_time(seconds) if seconds < 48 * 3600 else f"{seconds / 86400:.0f} days"


def shape(numbers: Sequence[int]) -> str:
    return "[" + ", ".join(map(str, numbers)) + "]"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
    """Prints columns as wide as their longest cell; those in `right` are right-aligned."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, *rows]:
        cells = [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
