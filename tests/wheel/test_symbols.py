"""Torch has its own protobuf, Python its own OpenSSL, in one process with ours: neither may see the other."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parents[1] / "python" / "keepstep"


def exported(library):
    told = subprocess.check_output(["nm", "--dynamic", "--defined-only", library], text=True)
    return {line.split()[-1] for line in told.splitlines()}


@pytest.mark.parametrize("name", ["_engine", "_checkpoint"])
def test_an_extension_shows_only_what_python_calls(name):
    if shutil.which("nm") is None:
        pytest.skip("no nm: apt-get install binutils")
    libraries = list(PACKAGE.glob(f"{name}.*.so"))
    assert libraries, "run make build first"
    for library in libraries:
        assert exported(library) == {f"PyInit_{name}"}


def test_both_speak_tls_in_one_process(versitygw_tls):
    url = versitygw_tls.bucket().partition("&ca_file")[0]
    said = subprocess.check_output(
        [sys.executable, HERE / "talk_tls.py", url, versitygw_tls.endpoint, versitygw_tls.certificate],
        env=versitygw_tls.environment(SSL_CERT_FILE=str(versitygw_tls.certificate)), text=True, timeout=120,
    )  # fmt: skip
    assert said.splitlines() == ["ssl: 403", "store: hello beside torch keepstep"]
