"""Values of options that several benchmarks have."""

from __future__ import annotations

import argparse


def numbers(text: str) -> list[int]:
    """``2,4``: for the `type` of an option."""
    parts = text.split(",")
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(f"'{text}': numbers from 1, separated by commas, are needed")
    return [int(part) for part in parts]
