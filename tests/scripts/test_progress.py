"""scripts/progress.py: what is left of the output of apt-get, pip and ninja."""

import subprocess
import sys

import pytest
from checkout import ROOT

APT = """\
Reading package lists...
The following NEW packages will be installed:
  libxxhash-dev munge slurmd
0 upgraded, 20 newly installed, 0 to remove and 3 not upgraded.
Need to get 12.4 MB of archives.
Get:1 http://mirror bookworm/main amd64 munge amd64 0.5.15-2 [78.1 kB]
Selecting previously unselected package munge.
Unpacking munge (0.5.15-2) ...
""" + "".join(f"Setting up package{number}:amd64 (1.0) ...\n" for number in range(1, 21))

PIP = """\
Looking in indexes: https://index/simple
Collecting torch==2.15.0
  Downloading https://index/packages/torch-2.15.0-cp311-none-linux_x86_64.whl (888.1 MB)
     888.1/888.1 MB 4.0 MB/s eta 0:00:00
Collecting rich==15.0.0
  Using cached rich-15.0.0-py3-none-any.whl (243 kB)
Collecting triton==4.0
  Using cached triton-4.0-cp311-none-linux_x86_64.whl (1.2 GB)
Installing collected packages: torch, rich, triton
Successfully installed torch rich triton
"""

BROKEN = """\
ninja: Entering directory `build'
[0/2, 0.1s] Re-checking globbed directories...
[1/40, 1.0s] Building CXX object a.o
[2/40, 1.1s] Building CXX object b.o
../b.cc:3:7: warning: unused variable 'x' [-Wunused-variable]
    3 |   int x;
[3/40, 2.0s] Building CXX object c.o
[4/40, 2.5s] Building CXX object d.o
[5/40, 2.6s] Building CXX object e.o
FAILED: e.o
g++ -c ../e.cc
../e.cc:1:1: error: 'nothing' does not name a type
ninja: build stopped: subcommand failed.
"""


def told(tool, text):
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/progress.py", tool], input=text, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_apt_is_told_by_its_size_and_a_line_for_each_tenth():
    assert told("apt", APT) == [
        "apt: Need to get 12.4 MB of archives.",
        "apt: [1/20] package1:amd64",
        *(f"apt: [{number}/20] package{number}:amd64" for number in range(2, 21, 2)),
    ]


def test_pip_is_told_by_its_large_files():
    assert told("pip", PIP) == [
        "pip: downloading torch-2.15.0-cp311-none-linux_x86_64.whl (888.1 MB)",
        "pip: using cached triton-4.0-cp311-none-linux_x86_64.whl (1.2 GB)",
        "pip: unpacking 3 packages",
    ]


def test_of_ninja_only_steps_are_left_out():
    lines = BROKEN.splitlines()
    hidden = [line for line in lines if line.startswith(("[0/", "[2/", "[3/", "[5/"))]
    assert told("ninja", BROKEN) == [line for line in lines if line not in hidden]


def test_a_line_is_told_when_it_comes():
    process = subprocess.Popen(
        [sys.executable, ROOT / "scripts/progress.py", "ninja"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
    )  # fmt: skip
    process.stdin.write("[1/2] first\n")
    assert process.stdout.readline() == "[1/2] first\n"
    process.stdin.close()
    assert process.wait(60) == 0


@pytest.mark.parametrize("tool", ["apt", "pip", "ninja"])
def test_nothing_is_told_of_nothing(tool):
    assert told(tool, "") == []
