"""``keepstep report DIR``: what failed in a run, how long each phase of each recovery took, and what it cost."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from keepstep._command import exit_with
from keepstep.report.analysis import analyse
from keepstep.report.as_json import report_json
from keepstep.report.journal import RunDirectoryError


def _price(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no price; give a number of at least 0")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="keepstep report", description=__doc__)
    parser.add_argument("directory", type=Path, metavar="DIR", help="the folder given to `keepstep run --journal DIR`")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument(
        "--price-per-hour", type=_price, metavar="P", help="price of one rank (one accelerator) for one hour"
    )
    parser.add_argument("--picture", type=Path, metavar="OUT.png", help="also draw loss and recoveries into a PNG")
    parser.add_argument("--html", type=Path, metavar="OUT.html", help="also write a self-contained page")
    return parser


def main(arguments: list[str]) -> int:
    chosen = _parser().parse_args(arguments)
    try:
        analysis = analyse(chosen.directory, chosen.price_per_hour)
        if chosen.picture is not None:
            from keepstep.report.picture import draw_picture

            draw_picture(analysis, chosen.picture)
        if chosen.html is not None:
            from keepstep.report.html import write_page

            write_page(analysis, chosen.html)
    except (RunDirectoryError, OSError) as error:
        print(f"keepstep report: {error}", file=sys.stderr)
        return 1
    if chosen.json:
        print(json.dumps(report_json(analysis), indent=2))
    else:
        from keepstep._console import Console
        from keepstep.report.tables import print_report

        print_report(analysis, Console())
    return 0


if __name__ == "__main__":
    exit_with(main)
