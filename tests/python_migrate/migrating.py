"""The command, and the cases it is tried on."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CASES = sorted((Path(__file__).parent / "cases").iterdir())


def file_of(case):
    (file,) = (each for each in case.iterdir() if each.name not in ("stdout", "stderr"))
    return file


def migrate(file, folder):
    return subprocess.run(
        [sys.executable, "-m", "keepstep.migrate", file], cwd=folder, capture_output=True, text=True, timeout=60
    )


def options_of_run():
    """From the page of `keepstep run`: by long name, in which section it is and whether a value follows."""
    found = {}
    for section in (ROOT / "docs" / "reference" / "run.md").read_text().split("\n## ")[1:]:
        for option in re.findall(r"^\| `([^`]*)` \|", section, re.MULTILINE):
            name, _, value = option.rpartition("--")[2].partition(" ")
            found[name] = (section.splitlines()[0], bool(value))
    return found
