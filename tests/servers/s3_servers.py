"""Real S3 servers for tests: versitygw and MinIO, built from pinned modules, on ports of their own.

Used as fixtures (tests/conftest.py makes them known to all tests):

    def test_something(versitygw):
        url = versitygw.bucket()   # "s3://b1?endpoint=http://127.0.0.1:PORT&region=us-east-1", new and empty
        subprocess.run(..., env=versitygw.environment())   # with its credentials

A server is started when the first test asks for it and ends with the session; the one with TLS ends with the file.
Where it cannot be built the tests that ask for it are skipped, and say why. `stop` and `start` let a test take it away
and bring it back, with its data.
"""

import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
KEY, SECRET, REGION = "keepstep", "keepstep-secret", "us-east-1"
START_LIMIT_S = 60
BUILD_LIMIT_S = 600


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def build(name):
    """The program's path; skips the test when there is no Go to build it with."""
    try:
        done = subprocess.run([HERE / "build.sh", name], capture_output=True, text=True, timeout=BUILD_LIMIT_S)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{name}: it was not built within {BUILD_LIMIT_S} s")
    if done.returncode != 0:
        pytest.skip(f"{name}: {(done.stderr.strip().splitlines() or ['cannot be built'])[-1]}")
    return done.stdout.strip()


class S3Server:
    """One server with its folder. Also usable without pytest: S3Server(name, program, folder).start()."""

    def __init__(self, name, program, folder, tls=False):
        self.name = name
        self.program = program
        self.folder = Path(folder)
        self.tls = tls
        self.port = free_port()
        self.process = None
        self.buckets = 0
        self.lock = threading.Lock()

    @property
    def endpoint(self):
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def certificate(self):
        """Of itself, so it is also the authority to trust."""
        return self.folder / "certificate.pem"

    def make_certificate(self):
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
             "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
             "-keyout", self.folder / "key.pem", "-out", self.certificate],
            check=True, capture_output=True,
        )  # fmt: skip

    def command(self):
        data = self.folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        if self.name == "versitygw":
            meta = self.folder / "meta"
            meta.mkdir(exist_ok=True)
            tls = ["--cert", str(self.certificate), "--key", str(self.folder / "key.pem")] if self.tls else []
            return [self.program, "--port", f"127.0.0.1:{self.port}", "--region", REGION, "--quiet", "--keep-alive",
                    *tls, "posix", "--sidecar", str(meta), str(data)]  # fmt: skip
        return [self.program, "server", "--quiet", "--address", f"127.0.0.1:{self.port}",
                "--certs-dir", str(self.folder / "certs"), str(data)]  # fmt: skip

    def start(self):
        names = {"ROOT_ACCESS_KEY_ID": KEY, "ROOT_SECRET_ACCESS_KEY": SECRET, "MINIO_ROOT_USER": KEY,
                 "MINIO_ROOT_PASSWORD": SECRET, "MINIO_BROWSER": "off", "MINIO_UPDATE": "off",
                 "MINIO_SITE_REGION": REGION, "MINIO_DOMAIN": "localhost"}  # fmt: skip
        if self.tls and not self.certificate.exists():
            self.make_certificate()
        command = self.command()
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command, env={**os.environ, **names}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        context = ssl.create_default_context(cafile=self.certificate) if self.tls else None
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            try:
                opener.open(self.endpoint, timeout=5).close()
                return self
            except urllib.error.HTTPError as answer:
                if answer.code < 500:
                    return self  # it refuses who does not sign: it is there
            except OSError:
                pass
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} did not start: {self.how_it_fares()}")
            time.sleep(0.02)

    def stop(self, how=signal.SIGKILL):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait()

    def how_it_fares(self):
        """Its exit code, if it has ended, and its last lines."""
        code = self.process.poll()
        state = "it is running" if code is None else f"it ended with {code}"
        return f"{state}, process {self.process.pid}; its log:\n{(self.folder / 'log').read_text()[-2000:]}"

    def environment(self, **more):
        """What a process needs to be let in, without anything of the user's own."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        return {**clean, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, **more}

    def curl(self, target, *how, fail=True):
        """A signed request by Debian's curl; its output. The query of `target` must be sorted and percent-encoded."""
        done = subprocess.run(
            ["curl", "-sS", *(["-f"] if fail else ["-i"]), "--noproxy", "*",
             "--aws-sigv4", f"aws:amz:{REGION}:s3", "--user", f"{KEY}:{SECRET}",
             "-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD",
             *(["--cacert", str(self.certificate)] if self.tls else []), *how, f"{self.endpoint}{target}"],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"{self.name}: {target}: {done.stderr}{self.how_it_fares()}")
        return done.stdout

    def get(self, target, fail=True):
        return self.curl(target, fail=fail)

    def bucket(self, prefix=""):
        """The URL of a new, empty bucket."""
        with self.lock:
            self.buckets += 1
            name = f"bucket-{self.buckets}"
        self.curl(f"/{name}", "-X", "PUT", "-o", "/dev/null")
        url = f"s3://{name}{'/' + prefix if prefix else ''}?endpoint={self.endpoint}&region={REGION}"
        return f"{url}&ca_file={self.certificate}" if self.tls else url


def serve(name, tmp_path_factory, **how):
    program = build(name)
    server = S3Server(name, program, tmp_path_factory.mktemp(name), **how)
    try:
        yield server.start()
    finally:
        server.stop()
        shutil.rmtree(server.folder, ignore_errors=True)


@pytest.fixture(scope="session")
def versitygw(tmp_path_factory):
    yield from serve("versitygw", tmp_path_factory)


@pytest.fixture(scope="module")  # not kept: in whole runs version 1.7.0 had ended, code 0, when the next file asked
def versitygw_tls(tmp_path_factory):
    yield from serve("versitygw", tmp_path_factory, tls=True)


@pytest.fixture(scope="session")
def minio(tmp_path_factory):
    yield from serve("minio", tmp_path_factory)
