"""``keepstep bench hydrate``: how fast a replaced rank gets its state, against a plain copy, iperf3 and OpenSSL.

A real job: a rank is killed and its successor filled by all others, which are on the same node (shared memory) or each
on a node of its own (TCP between network namespaces of this machine). The bytes and seconds are the journal's. On one
node they are compared with two processes that do nothing but copy as much with the same checksums at both ends, in the
quickest of several ways; across nodes with iperf3 from as many nodes at once, or from one if that is quicker, or, where
the data plane encrypts, with SSL_write into SSL_read in the same way: no checksums, and the bytes go nowhere. What is
measured takes turns. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from keepstep.bench.harness.arguments import PLANES, count, numbers, some_of
from keepstep.bench.harness.environment import BenchError, bench_program, keepstep_command, machine
from keepstep.bench.harness.namespaces import Node, switched_nodes, why_not
from keepstep.bench.harness.processes import Processes
from keepstep.bench.harness.waiting import progress_bar
from keepstep.bench.recovery.hydrate_job import HydrateJob

WHERE = ("same", "across")
PEERS = {"tls": "OpenSSL", "plain": "iperf3"}
PUMP = "keepstep_tls_bench"
PEER_PORT = 5201
IPERF_START_S = 10.0
MAX_SOURCES = 8
PUMPED_MIB_PER_S = 1000  # about what a connection carries here


def _copy(total: int) -> dict[str, float]:
    """Bytes per second of each way to copy, measured once."""
    done = subprocess.run(
        [bench_program("keepstep_copy_bench"), str(total), "1"], capture_output=True, text=True, timeout=300
    )
    if done.returncode != 0:
        raise BenchError(f"keepstep_copy_bench ended with {done.returncode}: {done.stderr.strip()}")
    return {way: total / seconds[0] for way, seconds in json.loads(done.stdout).items()}


def _iperf3(sources: Sequence[Node], target: Node, seconds: int) -> float:
    """Bytes per second from all sources at once, over one TCP stream each."""
    ports = range(PEER_PORT, PEER_PORT + len(sources))
    servers = [
        subprocess.Popen(target.command("iperf3", "-s", "-1", "-p", str(port)), stdout=subprocess.DEVNULL)
        for port in ports
    ]
    try:
        _wait_until_listening(target, ports)
        clients = [
            subprocess.Popen(
                node.command("iperf3", "-J", "-c", target.ip, "-p", str(port), "-t", str(seconds)),
                stdout=subprocess.PIPE,
                text=True,
            )
            for node, port in zip(sources, ports, strict=True)
        ]
        said = [client.communicate(timeout=60 + seconds)[0] for client in clients]
    finally:
        for server in servers:
            server.kill()
            server.wait()
    total = 0.0
    for text in said:
        received = json.loads(text or "{}").get("end", {}).get("sum_received")
        if received is None:
            raise BenchError(f"iperf3 failed: {text}")
        total += float(received["bits_per_second"]) / 8
    return total


def _openssl(sources: Sequence[Node], target: Node, mebibytes: int) -> float:
    """Bytes per second from all sources at once, SSL_write into SSL_read over one TCP connection each."""
    program = bench_program(PUMP)
    receivers = []
    senders = []
    try:
        for port, node in enumerate(sources, PEER_PORT):
            address = f"{target.ip}:{port}"
            receivers.append(
                subprocess.Popen(target.command(program, "receive", address), stdout=subprocess.PIPE, text=True)
            )
            senders.append(subprocess.Popen(node.command(program, "send", address, str(mebibytes))))
        said = [receiver.communicate(timeout=120)[0] for receiver in receivers]
    finally:
        for process in receivers + senders:
            process.kill()
            process.wait()
    return sum(float(json.loads(text)["bytes_per_second"]) for text in said)


def _wait_until_listening(node: Node, ports: Sequence[int]) -> None:
    deadline = time.monotonic() + IPERF_START_S
    while True:
        text = subprocess.run(node.command("ss", "-Htln"), capture_output=True, text=True, check=True).stdout
        if all(f":{port} " in text for port in ports):
            return
        if time.monotonic() > deadline:
            raise BenchError(f"iperf3 does not listen within {IPERF_START_S:.0f} s")
        time.sleep(0.02)


def _against_copy(total: int) -> Callable[[], dict[str, float]]:
    return lambda: _copy(total)


def _against_peer(nodes: Sequence[Node], plane: str, seconds: int) -> Callable[[], dict[str, float]]:
    *sources, target = nodes

    def rate(of: Sequence[Node]) -> float:
        return _openssl(of, target, seconds * PUMPED_MIB_PER_S) if plane == "tls" else _iperf3(of, target, seconds)

    def measure() -> dict[str, float]:
        found = {"1 stream": rate(sources[:1])}
        if len(sources) > 1:
            found[f"{len(sources)} streams"] = rate(sources)
        return found

    return measure


def _measure(
    job: HydrateJob, kills: int, beside: Callable[[], dict[str, float]], done: Callable[[], None]
) -> dict[str, Any]:
    """Measures the job and the others in turns. The first kill is a warm-up and is not counted."""
    ours: list[float] = []
    theirs: dict[str, list[float]] = {}
    job.replace_one()
    for _ in range(kills):
        job.wait_until_ready()
        for way, rate in beside().items():
            theirs.setdefault(way, []).append(rate)
        line = job.replace_one()
        ours.append(line["bytes"] / line["seconds"])
        done()
    medians = {way: statistics.median(rates) for way, rates in theirs.items()}
    best = max(medians, key=lambda way: medians[way])
    shares = [mine / other for mine, other in zip(ours, theirs[best], strict=True)]
    return {
        "bytes_per_second": statistics.median(ours),
        "least": min(ours),
        "most": max(ours),
        "against": best,
        "against_bytes_per_second": medians[best],
        "all_ways": medians,
        "share": statistics.median(shares),  # relative to what was measured just before: the machine has other load
        "shares": shares,
    }


def _line(row: dict[str, Any], plane: str) -> str:
    where = "on the same node" if row["where"] == "same" else "on other nodes"
    other = "a plain copy" if row["where"] == "same" else PEERS[plane]
    return (
        f"{row['megabytes']} MB from {row['sources']} source{'s' if row['sources'] > 1 else ''} {where}: "
        f"{row['bytes_per_second'] / 1e9:.2f} GB/s, {100 * row['share']:.0f}% of {other} "
        f"({row['against_bytes_per_second'] / 1e9:.2f} GB/s, {row['against']})"
    )


def _check(chosen: argparse.Namespace) -> None:
    """Reports what is missing before the first minute is spent."""
    keepstep_command()
    bench_program("keepstep_copy_bench")
    bench_program(PUMP)
    if "across" in chosen.where:
        reason = why_not()
        for command, package in (("iperf3", "iperf3"), ("ss", "iproute2")):
            if chosen.data_plane == "plain" and reason is None and shutil.which(command) is None:
                reason = f"there is no command {command} (package {package})"
        if reason is not None:
            raise BenchError(f"sources on other nodes: {reason}; --where same leaves them out")
    workers = (max(chosen.sources) + 1) * (2 if "across" in chosen.where else 1) + 1
    need = workers * chosen.megabytes * 1_000_000 + 2 * chosen.megabytes * 1_000_000
    lines = Path("/proc/meminfo").read_text().splitlines()
    have = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    if need > have:
        raise BenchError(
            f"this needs {need / 1e9:.1f} GB of memory, and {have / 1e9:.1f} GB are free; use fewer --megabytes"
        )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="keepstep bench hydrate", description=__doc__)
    parser.add_argument("--sources", type=numbers, default="1,2,3", help="how many, with commas (default %(default)s)")
    parser.add_argument(
        "--where",
        type=some_of(WHERE),
        default="same,across",
        help="sources on the same node, across nodes (default both)",
    )
    parser.add_argument("--megabytes", type=count, default=500, help="of state (default %(default)s)")
    parser.add_argument("--data-plane", choices=PLANES, default="tls", help="between nodes (default %(default)s)")
    parser.add_argument("--kills", type=count, default=5, help="of each case (default %(default)s)")
    parser.add_argument("--seconds", type=count, default=2, help="of one iperf3 or OpenSSL (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the JSON object only")
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep logs and journals there")
    chosen = parser.parse_args(arguments)
    if max(chosen.sources) > MAX_SOURCES:
        parser.error(f"argument --sources: {max(chosen.sources)} are too many; at most {MAX_SOURCES}")
    _check(chosen)
    total = chosen.megabytes * 1_000_000
    rows: list[dict[str, Any]] = []
    load_before = os.getloadavg()[0]
    say: Callable[[str], None] = (lambda text: None) if chosen.json else print
    with tempfile.TemporaryDirectory(prefix="keepstep-bench-") as scratch, progress_bar() as bar:
        out = chosen.out or Path(scratch)
        cases = [(where, sources) for where in chosen.where for sources in chosen.sources]
        task = bar.add_task("hydrate", total=len(cases) * chosen.kills, note="")
        for where, sources in cases:
            bar.update(task, note=f"{where}, {sources} sources")
            folder = out / f"{where}-{sources}"
            with Processes() as processes:
                if where == "same":
                    job = HydrateJob(processes, folder, sources, total, [])
                    found = _measure(job, chosen.kills, _against_copy(total), lambda: bar.advance(task))
                    job.stop()
                else:
                    with switched_nodes(sources + 1) as nodes:
                        job = HydrateJob(processes, folder, sources, total, nodes, "--data-plane", chosen.data_plane)
                        beside = _against_peer(nodes, chosen.data_plane, chosen.seconds)
                        found = _measure(job, chosen.kills, beside, lambda: bar.advance(task))
                        job.stop()
            rows.append({"where": where, "sources": sources, "megabytes": chosen.megabytes} | found)
            say(_line(rows[-1], chosen.data_plane))
    result: dict[str, Any] = {}
    for where, field in (("same", "share_of_copy"), ("across", "share_of_peer")):
        shares = [row["share"] for row in rows if row["where"] == where]
        result[field] = min(shares) if shares else None
    result |= {"cases": rows, "kills": chosen.kills, "data_plane": chosen.data_plane, "peer": PEERS[chosen.data_plane]}
    print(json.dumps(result | {"environment": machine() | {"load_before": load_before}}))
    return 0
