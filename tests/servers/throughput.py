"""How fast one large object goes into versitygw and comes back, beside curl's single PUT and GET, in one run.

    .venv/bin/python tests/servers/throughput.py [MEBIBYTES] [ROUNDS]

Medians in MB/s. The server works on the same cores and keeps its files in memory (/dev/shm), so these are the costs of
both ends together. versitygw copies all parts once more when they are joined, so the object is also sent whole.
"""

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from s3_servers import KEY, REGION, SECRET, S3Server, build

BUILD = (Path(sys.executable).parent / "keepstep").resolve().parent


def curl_once(server, source, target):
    seconds = []
    url = f"{server.endpoint}/bucket-1/curl"
    signed = ["curl", "-sS", "-f", "--noproxy", "*", "--aws-sigv4", f"aws:amz:{REGION}:s3", "--user", f"{KEY}:{SECRET}",
              "-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD"]  # fmt: skip
    for how in (["-T", source, "-o", "/dev/null"], ["-o", target]):
        begin = time.monotonic()
        subprocess.run([*signed, *how, url], check=True)
        seconds.append(time.monotonic() - begin)
    return seconds


def ours_once(server, url, mebibytes, part_mebibytes):
    done = subprocess.run(
        [BUILD / "keepstep_store_bench", url, str(mebibytes), str(part_mebibytes)],
        env=server.environment(),
        check=True,
        capture_output=True,
        text=True,
    )
    line = json.loads(done.stdout)
    return [line["put_s"], line["get_s"]]


def main():
    mebibytes = int(sys.argv[1]) if len(sys.argv) > 1 else 512
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 7
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    server = S3Server("versitygw", build("versitygw"), folder)
    try:
        server.start()
        url = server.bucket()
        source = folder / "source"
        source.write_bytes(bytes(range(256)) * (mebibytes << 12))
        seconds = {"in parts of 16 MiB": [], "whole": [], "curl": []}
        for _ in range(rounds):  # in turns, so that all meet the same machine
            seconds["in parts of 16 MiB"].append(ours_once(server, url, mebibytes, 16))
            seconds["whole"].append(ours_once(server, url, mebibytes, max(5, mebibytes)))
            seconds["curl"].append(curl_once(server, source, "/dev/null"))
        for name, times in seconds.items():
            put, get = ((mebibytes << 20) / 1e6 / statistics.median(column) for column in zip(*times, strict=True))
            print(f"{name}: put {put:.0f} MB/s, get {get:.0f} MB/s")
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


main()
