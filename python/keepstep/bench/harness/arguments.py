"""Types of options that several benchmarks share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable

PLANES = ("tls", "plain")  # of keepstep run --data-plane


def numbers(text: str) -> list[int]:
    """``2,4``: for the `type` of an option."""
    parts = text.split(",")
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(f"'{text}': numbers from 1, separated by commas, are needed")
    return [int(part) for part in parts]


def some_of(known: Iterable[str]) -> Callable[[str], list[str]]:
    """``dcp,torch_save``: for the `type` of an option that takes names of `known`."""
    known = tuple(known)

    def parse(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"'{name}' is none of {', '.join(known)}")
        return names

    return parse


def count(text: str) -> int:
    """Of an option: a number of things, at least one."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is too few; at least 1")
    return value
