"""The S3 store against real servers: the program of the C++ tests, pointed at them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

LIMIT_S = 300


def run_tests(server, which, url=None, **environment):
    build = (Path(sys.executable).parent / "keepstep").resolve().parent  # where the command was built
    program = build / "keepstep_checkpoint_test"
    if not program.exists():
        pytest.skip(f"{program} is not built")
    done = subprocess.run(
        [program, f"--gtest_filter={which}"],
        env=server.environment(KEEPSTEP_TEST_S3=url or server.bucket(), **environment),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert re.search(r"\[  PASSED  \] [1-9]", done.stdout) and "SKIPPED" not in done.stdout, done.stdout[-3000:]


def test_the_store_does_its_work_on_versitygw(versitygw):
    run_tests(versitygw, "S3ServerTest.*")


def test_over_tls_it_trusts_whom_it_is_told_to_and_nobody_else(versitygw_tls):
    run_tests(versitygw_tls, "S3ServerTest.*contract*:S3ServerTest.*parts*:S3ServerTest.*certificate*")


def test_all_arrives_through_a_proxy_that_drops_cuts_stalls_and_refuses(versitygw):
    run_tests(versitygw, "SpoiledS3ServerTest.*")


@pytest.mark.long
def test_the_store_does_its_work_on_minio(minio):
    run_tests(minio, "S3ServerTest.*")


@pytest.mark.long
def test_of_sixteen_racing_writers_exactly_one_wins_on_minio(minio):
    run_tests(minio, "AtomicS3ServerTest.*", KEEPSTEP_TEST_S3_ATOMIC="1")


@pytest.mark.long
def test_a_bucket_may_be_part_of_the_hosts_name(minio):
    url = minio.bucket().replace("http://127.0.0.1", "http://localhost") + "&addressing=virtual"
    run_tests(minio, "S3ServerTest.*contract*:S3ServerTest.*pages*:S3ServerTest.*killed*", url)


@pytest.mark.long
@pytest.mark.parametrize("server", ["versitygw", "minio"])
def test_all_arrives_through_many_such_proxies(server, request):
    run_tests(request.getfixturevalue(server), "SpoiledS3ServerTest.*", KEEPSTEP_SPOILED_ROUNDS="15")
