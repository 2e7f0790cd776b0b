"""Saves that are killed, or fail, at every system call that changes the tier: some complete checkpoint is always there,
and the newest complete one is right."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

KEEPSTEP = Path(os.environ.get("KEEPSTEP_COMMAND") or shutil.which("keepstep", path=Path(sys.executable).parent))
SHIM = KEEPSTEP.resolve().parent / "libkeepstep_crash_points.so"
DRIVER = Path(__file__).parent / "crash_driver.py"


def drive(folder, mode, every=1):
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", str(DRIVER), str(folder), mode, str(every)],
        capture_output=True, text=True, env={**os.environ, "LD_PRELOAD": str(SHIM)}, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-4000:]
    return json.loads(ran.stdout)


def expect_both_sides(result, least):
    assert result["points"] >= least
    # First the old one is the newest, from some call on the new one; never back.
    assert result["newest"] == sorted(result["newest"]) and set(result["newest"]) == {2, 3}


def test_a_writer_killed_after_one_system_call_in_seven_leaves_the_newest_complete_one_right(tmp_path):
    expect_both_sides(drive(tmp_path, "after", every=7), least=6)


@pytest.mark.long
def test_a_writer_killed_after_any_system_call_leaves_the_newest_complete_one_right(tmp_path):
    expect_both_sides(drive(tmp_path, "after"), least=40)


@pytest.mark.long
def test_a_writer_killed_in_the_middle_of_any_write_leaves_the_newest_complete_one_right(tmp_path):
    expect_both_sides(drive(tmp_path, "half"), least=40)


@pytest.mark.long
def test_a_disk_that_is_full_from_any_system_call_on_is_an_error_and_nothing_is_lost(tmp_path):
    expect_both_sides(drive(tmp_path, "fail"), least=25)
