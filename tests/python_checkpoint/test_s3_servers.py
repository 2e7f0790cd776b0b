"""The S3 store against real servers: the program of the C++ tests, pointed at them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

LIMIT_S = 300


def run_tests(server, which, **environment):
    build = (Path(sys.executable).parent / "keepstep").resolve().parent  # where the command was built
    program = build / "keepstep_checkpoint_test"
    if not program.exists():
        pytest.skip(f"{program} is not built")
    done = subprocess.run(
        [program, f"--gtest_filter={which}"],
        env=server.environment(KEEPSTEP_TEST_S3=server.bucket(), **environment),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert re.search(r"\[  PASSED  \] [1-9]", done.stdout) and "SKIPPED" not in done.stdout, done.stdout[-3000:]


def test_the_store_does_its_work_on_versitygw(versitygw):
    run_tests(versitygw, "S3ServerTest.*")


@pytest.mark.long
def test_the_store_does_its_work_on_minio(minio):
    run_tests(minio, "S3ServerTest.*")


@pytest.mark.long
def test_of_sixteen_racing_writers_exactly_one_wins_on_minio(minio):
    run_tests(minio, "AtomicS3ServerTest.*", KEEPSTEP_TEST_S3_ATOMIC="1")
