"""``keepstep certify``: tests which faults a script survives.

usage: keepstep certify [OPTIONS] [OPTIONS OF keepstep run] SCRIPT [ARGUMENTS OF SCRIPT ...]

Runs SCRIPT twice undisturbed, then once for each fault in a systematic set, and compares every loss, all protected
state and all samples bit by bit with the undisturbed run.

options:
  --steps N        last step of each job; 0: as many steps as the script runs (default 10)
  --out DIR        folder for each job's journal and output, index.html and certificate.json (default certify)
  --only A,B       try these faults only
  --list           list the faults and run nothing
  --timeout S      end a job that takes longer, and count it as hung (default 600)
  --json           print one JSON object instead of tables

{job} in an argument of SCRIPT becomes an empty folder for each job, for checkpoints that the script continues from.

Exit code 0: the script survives all faults; 1: it does not, or nothing could be tried; 2: wrong options.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from keepstep._command import exit_with
from keepstep.bench.harness.environment import BenchError, keepstep_command
from keepstep.bench.harness.processes import Processes
from keepstep.certify.certificate import as_json
from keepstep.certify.options import OptionError, Options, options_of_run, parse
from keepstep.certify.page import print_certificate, write_html
from keepstep.certify.session import certify
from keepstep.certify.trials import Shape, trials

MARK = "certificate.json"  # a folder that contains it is ours to overwrite


def _clear(out: Path) -> str | None:
    """Makes room for the new certificate. Returns an error if something else is in the way."""
    if out.exists() and any(out.iterdir()):
        if not (out / MARK).is_file():
            return f"{out} is not empty and holds no certificate; give another folder with --out"
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / MARK).write_text("{}\n")
    return None


def _print_list() -> None:
    for each in trials(Shape(world=4, nodes=2, spares=1, spare_nodes=1, steps=10, python=True, digests=True)):
        print(f"{each.name:<15} {getattr(each, 'says', '')}")


def _run(chosen: Options, command: str) -> int:
    from keepstep._console import Console

    with Processes() as processes:
        found = certify(chosen, command, processes)
    (chosen.out / MARK).write_text(json.dumps(as_json(found), indent=2) + "\n")
    write_html(found, chosen.out / "index.html")
    if chosen.as_json:
        print(json.dumps(as_json(found), indent=2))
    else:
        print_certificate(found, Console())
        print(f"page: {chosen.out / 'index.html'}; journals: {chosen.out}/jobs/FAULT/run")
    return 0 if found.holds else 1


def main(arguments: list[str]) -> int:
    if not arguments or "--help" in arguments[:1] or "-h" in arguments[:1]:
        print(__doc__)
        return 0 if arguments else 2
    if arguments == ["--list"]:
        _print_list()
        return 0
    try:
        command = keepstep_command()
        chosen = parse(arguments, options_of_run(command))
    except OptionError as error:
        for line in str(error).splitlines():
            print(f"keepstep certify: {line}", file=sys.stderr)
        return 2
    except (BenchError, OSError, subprocess.CalledProcessError) as error:
        print(f"keepstep certify: {error}", file=sys.stderr)
        return 1
    if chosen.list_only:
        _print_list()
        return 0
    if in_the_way := _clear(chosen.out):
        print(f"keepstep certify: {in_the_way}", file=sys.stderr)
        return 2
    try:
        return _run(chosen, command)
    except BenchError as error:
        print(f"keepstep certify: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("keepstep certify: stopped; all its processes are ended", file=sys.stderr)
        return 130


if __name__ == "__main__":
    exit_with(main)
