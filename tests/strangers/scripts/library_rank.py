"""One rank of a job that runs Lightning's own tests: pytest, with a Trainer of two ranks where a test asks for none.

`--strategy` is what a Trainer gets that names none. A line for each test that begins, and for each that ends.
"""

import argparse
import json
import os
import sys
import threading
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--strategy", required=True)
parser.add_argument("--out", required=True, type=Path)
parser.add_argument("--checkout", required=True, type=Path, help="folder with Lightning's tests_pytorch")
parser.add_argument("tests", type=Path, help="file with a test a line")
chosen = parser.parse_args()

if chosen.strategy == "keepstep":
    import keepstep.integrations.lightning  # noqa: F401

rank = os.environ["RANK"]  # from here on the environment stays as it is, which Lightning's tests check
sys.path.insert(0, str(chosen.checkout))
os.chdir(chosen.checkout)

import lightning.fabric.utilities.distributed as distributed  # noqa: E402
import lightning.pytorch as pl  # noqa: E402
import pytest  # noqa: E402

# Lightning's tests destroy the process group after each; torchrun's ranks cannot make another one at once.
distributed._destroy_dist_connection = lambda: None
_made = pl.Trainer.__init__


def made(self, *args, **options):
    options.setdefault("strategy", chosen.strategy)
    options.setdefault("accelerator", "cpu")
    if options.get("devices", "auto") in ("auto", 1):
        options["devices"] = 2
    _made(self, *args, **options)


pl.Trainer.__init__ = made


class Lines:
    def write(self, **line):
        with (chosen.out / f"rank{rank}.jsonl").open("a") as out:
            out.write(json.dumps(line) + "\n")

    def pytest_runtest_logstart(self, nodeid):
        self.write(begins=nodeid)

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            self.write(test=report.nodeid, outcome=report.outcome, why=str(report.longrepr or "")[-1500:])


# Lightning's tests look for threads left behind. Those of keepstep last as long as its process group.
_threads = threading.enumerate
threading.enumerate = lambda: [each for each in _threads() if not each.name.startswith("keepstep-")]
wanted = chosen.tests.read_text().split("\n")
options = ["-q", "-p", "no:cacheprovider", "--basetemp", str(chosen.out / f"tmp{rank}"), "-o", "addopts=", "-x",
           f"--rootdir={chosen.checkout}"]  # fmt: skip
sys.exit(pytest.main([*options, *[each for each in wanted if each]], plugins=[Lines()]) > 1)
