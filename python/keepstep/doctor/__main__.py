"""``keepstep doctor``: can this machine run jobs, and can its peers reach it?"""

from __future__ import annotations

import argparse
import sys

from keepstep import __version__
from keepstep._command import exit_with
from keepstep._console import Console
from keepstep.doctor.checks import Wanted, checks
from keepstep.doctor.peers import Meeting
from keepstep.doctor.show import Page, print_json

MAX_RANKS = 63
EPILOG = """\
Alone it looks at this machine: Python, keepstep, torch, GPUs, CPUs, the kernel, limits, memory, clocks, names and
ports. Then a small job on this machine sends data over shared memory and TLS, and checks it.

With --rdzv-endpoint, started on several machines at about the same time, doctors also meet there as a small job of
their own: each resolves the others' names, compares clocks, and sends data both ways. The first one on the machine that
the endpoint names is node 0. A job that already runs at the endpoint is left alone.

examples:
  keepstep doctor
  keepstep doctor --nproc-per-node 8 --json
  keepstep doctor --rdzv-endpoint node-a:29400 --token-file job.token --nnodes 2     on both machines

exit codes: 0 jobs can run here, perhaps with warnings; 1 jobs cannot run here, and why is printed; 2 wrong options.
"""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="keepstep doctor",
        description="Checks whether this machine can run jobs. For each thing that jobs need, prints that it is fine, "
        "or what to do.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument(
        "--nproc-per-node", type=int, metavar="N", help="ranks on this machine (default: as for run's auto)"
    )
    made.add_argument("--rdzv-endpoint", metavar="HOST[:PORT]", help="where doctors on several machines meet")
    made.add_argument("--nnodes", type=int, default=2, metavar="N", help="how many machines meet (default %(default)s)")
    made.add_argument("--token-file", metavar="FILE", help="the job token, the same on all; default: KEEPSTEP_TOKEN")
    made.add_argument("--rdzv-id", default="none", metavar="ID", help="the job's --rdzv-id, if it will have one")
    made.add_argument(
        "--timeout-s", type=float, default=60, metavar="S", help="seconds to wait for the others (default %(default)s)"
    )
    made.add_argument("--json", action="store_true", help="print one JSON object at the end instead of lines")
    return made


def wanted(arguments: list[str]) -> tuple[Wanted, bool]:
    """Parses the options; also returns whether JSON is wanted. Ends the process with code 2 if they are wrong."""
    made = parser()
    options = made.parse_args(arguments)
    if options.nproc_per_node is not None and not 1 <= options.nproc_per_node <= MAX_RANKS:
        made.error(f"--nproc-per-node is {options.nproc_per_node}; give 1 to {MAX_RANKS}")
    if options.rdzv_endpoint is None:
        if options.token_file is not None:
            made.error("--token-file is for peers; give --rdzv-endpoint, too")
        return Wanted(options.nproc_per_node), options.json
    if options.nnodes < 2:
        made.error(f"--nnodes is {options.nnodes}; at least 2 machines meet at --rdzv-endpoint")
    if not 1 <= options.timeout_s <= 3600:
        made.error(f"--timeout-s is {options.timeout_s:g}; give 1 to 3600 seconds")
    meeting = Meeting(options.rdzv_endpoint, options.token_file, options.rdzv_id, options.nnodes, options.timeout_s)
    try:
        meeting.address()
    except ValueError as why:
        made.error(f"--rdzv-endpoint: {why}; give HOST or HOST:PORT, as in node-a:29400 or [fd00::7]:29400")
    return Wanted(options.nproc_per_node, meeting), options.json


def main(arguments: list[str]) -> int:
    what, json = wanted(arguments)
    findings = []
    try:
        with Page(Console(stderr=json)) as page:
            for finding in checks(what, page.begin):
                findings.append(finding)
                if not json:
                    page.add(finding)
            if not json:
                page.end(findings)
    except KeyboardInterrupt:
        print("keepstep doctor: stopped; all that it started is ended", file=sys.stderr)
        return 130
    if json:
        print_json(findings, __version__)
    return 1 if any(finding.level == "error" for finding in findings) else 0


if __name__ == "__main__":
    exit_with(main)
