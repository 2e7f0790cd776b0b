"""``keepstep bench transport``: the data plane between two nodes, against iperf3, OpenSSL by itself, and Gloo.

The nodes are two network namespaces of this machine, joined by a veth pair, so the link is as fast as the CPUs copy.
All share one run: what is measured alternates, and only ratios mean something.
"""

from __future__ import annotations

import argparse
import json
import secrets
import shutil
import statistics
import subprocess
import sys
import time
from typing import Any

from keepstep.bench.harness.arguments import PLANES, count, numbers
from keepstep.bench.harness.environment import JOBS, BenchError, bench_program, job_environment, machine
from keepstep.bench.harness.namespaces import Node, two_nodes

SIZES = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20]
STREAM_BYTES = 1 << 20  # of one part; the buffer is reused, like iperf3's
IPERF_PORT = 5201


class Bench:
    def __init__(self, nodes: tuple[Node, Node], ranks_per_node: int, repeats: int) -> None:
        self.nodes = nodes
        self.ranks_per_node = ranks_per_node
        self.repeats = repeats
        self.program = bench_program("keepstep_nodes_bench")
        self.pump = bench_program("keepstep_tls_bench")
        self.environment = job_environment() | {"DATA_KEY": secrets.token_hex(32)}
        self.port = 21_000

    def _together(self, commands: list[list[str]], plane: str = "tls") -> str:
        """Runs all commands at the same time; returns what they printed."""
        environment = self.environment | ({"PLAIN": "1"} if plane == "plain" else {})
        processes = [subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) for words in commands]
        try:
            outputs = [process.communicate(timeout=300)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
        for process, words in zip(processes, commands, strict=True):
            if process.returncode != 0:
                raise BenchError(f"`{' '.join(words)}` ended with {process.returncode}")
        return "".join(outputs)

    def keepstep(
        self, operation: str, size: int, repeats: int, streams: int, ranks_per_node: int, plane: str
    ) -> dict[str, float]:
        self.port += 100  # no run has to wait for a port of the previous run
        addresses = [f"{node.ip}:{self.port + local}" for node in self.nodes for local in range(ranks_per_node)]
        output = self._together(
            [
                node.command(
                    self.program, str(index), str(ranks_per_node), str(streams), operation, str(size), str(repeats),
                    *addresses,
                )
                for index, node in enumerate(self.nodes)
            ],
            plane,
        )  # fmt: skip
        return dict(json.loads(output))

    def openssl(self, mebibytes: int) -> float:
        """Bytes per second of SSL_write into SSL_read, one connection."""
        self.port += 100
        address = f"{self.nodes[1].ip}:{self.port}"
        output = self._together(
            [
                self.nodes[1].command(self.pump, "receive", address),
                self.nodes[0].command(self.pump, "send", address, str(mebibytes)),
            ]
        )
        return float(json.loads(output)["bytes_per_second"])

    def gloo(self, sizes: list[int]) -> dict[str, dict[str, float]]:
        self.port += 100
        world = 2 * self.ranks_per_node
        commands = []
        for index, node in enumerate(self.nodes):
            for local in range(self.ranks_per_node):
                rank = index * self.ranks_per_node + local
                commands.append(
                    node.command(
                        sys.executable, str(JOBS / "gloo_allreduce.py"), str(rank), str(world), self.nodes[0].ip,
                        str(self.port), node.device, str(self.repeats), *map(str, sizes),
                    )
                )  # fmt: skip
        return dict(json.loads(self._together(commands)))

    def iperf3(self, seconds: int) -> float:
        """Bytes per second of one TCP stream."""
        server = subprocess.Popen(
            self.nodes[1].command("iperf3", "-s", "-1", "-p", str(IPERF_PORT)), stdout=subprocess.DEVNULL
        )
        try:
            client = self.nodes[0].command(
                "iperf3", "-J", "-c", self.nodes[1].ip, "-p", str(IPERF_PORT), "-t", str(seconds)
            )
            deadline = time.monotonic() + 10
            while True:
                done = subprocess.run(client, capture_output=True, text=True)
                received = json.loads(done.stdout or "{}").get("end", {}).get("sum_received")
                if received is not None:
                    return float(received["bits_per_second"]) / 8
                if time.monotonic() > deadline:
                    raise BenchError(f"iperf3 failed: {done.stdout}{done.stderr}")
                time.sleep(0.05)  # its server is not listening yet
        finally:
            server.kill()
            server.wait()


def measure_streams(bench: Bench, rounds: int, seconds: int) -> list[dict[str, Any]]:
    """Compares with iperf3 (plain) or OpenSSL (encrypted). ``stream``: parts of collectives, ``messages``."""
    rates: dict[str, list[float]] = {}
    for _ in range(rounds):
        rates.setdefault("iperf3", []).append(bench.iperf3(seconds))
        repeats = max(200, int(rates["iperf3"][-1] * seconds / STREAM_BYTES))
        rates.setdefault("openssl", []).append(bench.openssl(repeats))
        for plane in PLANES:
            for operation in ("stream", "messages"):
                rate = bench.keepstep(operation, STREAM_BYTES, repeats, 1, 1, plane)["bytes_per_second"]
                rates.setdefault(f"{operation} {plane}", []).append(rate)
    rows = []
    for plane in PLANES:
        peer = "iperf3" if plane == "plain" else "openssl"
        for operation in ("stream", "messages"):
            ours = rates[f"{operation} {plane}"]
            ratios = (a / b for a, b in zip(ours, rates[peer], strict=True))
            rows.append(
                {
                    "operation": operation,
                    "data_plane": plane,
                    "keepstep_bytes_per_second": statistics.median(ours),
                    "peer": peer,
                    "peer_bytes_per_second": statistics.median(rates[peer]),
                    "ratio": round(statistics.median(ratios), 3),
                }
            )
    return rows


def measure_all_reduce(bench: Bench, sizes: list[int], streams: int, plane: str) -> list[dict[str, Any]]:
    gloo = bench.gloo(sizes)
    results = []
    for size in sizes:
        repeats = bench.repeats if size > 64 << 10 else 20 * bench.repeats
        ours = bench.keepstep("all_reduce", size, repeats, streams, bench.ranks_per_node, plane)["seconds"]
        theirs = gloo[str(size)]["seconds"]
        results.append(
            {
                "bytes": size,
                "data_plane": plane,
                "ranks": 2 * bench.ranks_per_node,
                "keepstep_s": round(ours, 7),
                "gloo_s": round(theirs, 7),
                "ratio": round(theirs / ours, 2),
            }
        )
    return results


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="keepstep bench transport", description=__doc__)
    parser.add_argument("--ranks-per-node", type=numbers, default="1,2", help="comma separated (default: 1,2)")
    parser.add_argument("--streams", type=count, default=2, help="TCP streams for collectives (default: 2)")
    parser.add_argument("--repeats", type=count, default=15, help="all-reduces per size (default: 15)")
    parser.add_argument("--rounds", type=count, default=3, help="rounds against iperf3 (default: 3)")
    parser.add_argument("--seconds", type=count, default=2, help="length of one iperf3 run (default: 2)")
    parser.add_argument("--json", action="store_true", help="only the JSON object")
    options = parser.parse_args(arguments)
    say = (lambda text: None) if options.json else print
    with two_nodes() as nodes:
        bench = Bench(nodes, 1, options.repeats)
        streams = []
        if shutil.which("iperf3") is None:
            say("iperf3 is not installed: the comparison of one stream is left out")
        else:
            streams = measure_streams(bench, options.rounds, options.seconds)
        for row in streams:
            say(
                f"{row['operation']:>8}, {row['data_plane']:>5}: {row['keepstep_bytes_per_second'] / 1e9:.2f} GB/s, "
                f"{row['peer']} {row['peer_bytes_per_second'] / 1e9:.2f} GB/s, ratio {row['ratio']}"
            )
        sizes = []
        for ranks in options.ranks_per_node:
            bench.ranks_per_node = ranks
            for plane in PLANES:
                for row in measure_all_reduce(bench, SIZES, options.streams, plane):
                    sizes.append(row)
                    say(
                        f"all_reduce of {row['bytes']:>9} bytes, 2 nodes x {ranks}, {plane:>5}: "
                        f"{row['keepstep_s'] * 1e3:8.3f} ms, Gloo {row['gloo_s'] * 1e3:8.3f} ms, ratio {row['ratio']}"
                    )
    print(json.dumps({"streams": streams, "sizes": sizes, "machine": machine()}))
    return 0
