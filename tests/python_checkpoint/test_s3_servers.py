"""The S3 store against real servers: the program of the C++ tests, pointed at them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

LIMIT_S = 300
COMMAND = Path(sys.executable).parent / "keepstep"  # a link to where all was built


def run_tests(server, which, url=None, **environment):
    program = COMMAND.resolve().parent / "keepstep_checkpoint_test"
    if not program.exists():
        pytest.skip(f"{program} is not built")
    done = subprocess.run(
        [program, f"--gtest_filter={which}"],
        env=server.environment(KEEPSTEP_TEST_S3=url or server.bucket(), **environment),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    told = "\n".join(line for line in done.stdout.splitlines() if "[ RUN" not in line and "OK ]" not in line)
    assert done.returncode == 0, told[:6000] + done.stderr[-2000:]
    assert re.search(r"\[  PASSED  \] [1-9]", done.stdout) and "SKIPPED" not in done.stdout, done.stdout[-3000:]


def test_the_store_does_its_work_on_versitygw(versitygw):
    run_tests(versitygw, "S3ServerTest.*")


def test_over_tls_it_trusts_whom_it_is_told_to_and_nobody_else(versitygw_tls):
    run_tests(versitygw_tls, "S3ServerTest.*contract*:S3ServerTest.*parts*:S3ServerTest.*certificate*")


def test_all_arrives_through_a_proxy_that_drops_cuts_stalls_and_refuses(versitygw):
    run_tests(versitygw, "SpoiledS3ServerTest.*")


def uploads(server, bucket):
    """The ids of the uploads that are not completed, by key."""
    text = server.get(f"/{bucket}?uploads=")
    return dict(re.findall(r"<Key>([^<]*)</Key><UploadId>([^<]*)</UploadId>", text))


def test_what_a_killed_writer_has_sent_is_not_sent_again(versitygw):
    url = versitygw.bucket()
    bucket = re.match(r"s3://([^?/]+)", url)[1]
    program = COMMAND.resolve().parent / "keepstep_store_bench"  # its bytes are the same each time
    command = [program, url, "150", "5"]
    writer = subprocess.Popen(command, env=versitygw.environment(), stdout=subprocess.PIPE)
    parts = 0
    while parts < 3:
        assert writer.poll() is None, "it was done before it was killed"
        for key, upload in uploads(versitygw, bucket).items():
            parts = versitygw.get(f"/{bucket}/{key}?uploadId={upload}").count("<Part>")
    writer.kill()
    writer.wait()
    writer.stdout.close()
    [(key, upload)] = uploads(versitygw, bucket).items()
    assert key == "bench/object"
    assert "404" in versitygw.get(f"/{bucket}/{key}", fail=False)
    subprocess.run(command, env=versitygw.environment(), check=True, capture_output=True, timeout=LIMIT_S)
    assert uploads(versitygw, bucket) == {}  # that one was completed: another would have left it behind


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
