"""torch's TCPStore in `keepstep bench rendezvous`: every client writes its address and reads those of others."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from keepstep.bench.harness.environment import JOBS, BenchError
from keepstep.bench.harness.line_process import LineProcess, answers

PROCESSES = 8
# Every client reads every address with a separate get: N^2 requests, which take 25 s with 1,024 clients.
ALL_GETS_UP_TO = 1024
MULTI_GET_UP_TO = 1024
CONNECT_TIMEOUT_S = 300.0
EXCHANGE_TIMEOUT_S = 600.0
SPARE_DESCRIPTORS = 100

JOB = str(JOBS / "tcpstore_clients.py")


def _allow_descriptors(needed: int) -> bool:
    """Raises this process's limit on open files, which its children inherit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed + SPARE_DESCRIPTORS:
        return False
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return True


def _without_name_server(folder: Path) -> list[str]:
    """A command prefix that keeps a program from using a name server; empty if that is not allowed.

    TCPStore looks up the name of each connection's peer, and many lookups at once are slow: half a minute for 256
    clients. That happens before the clock starts, so it would only prolong the benchmark.
    """
    setting = Path("/etc/nsswitch.conf")
    lines = setting.read_text().splitlines() if setting.exists() else []
    ours = folder / "nsswitch.conf"
    ours.write_text("\n".join([*(line for line in lines if not line.startswith("hosts:")), "hosts: files"]) + "\n")
    mount = f'mount --bind "$0" {setting} && exec "$@"'
    prefix = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, str(ours.resolve())]
    try:
        allowed = subprocess.run([*prefix, "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0
    except FileNotFoundError:
        return []
    return prefix if allowed else []


def _exchange(processes: list[LineProcess], how: str) -> float:
    for process in processes:
        process.say(how)
    answers(processes, "ready", CONNECT_TIMEOUT_S)
    go_ns = time.monotonic_ns()
    for process in processes:
        process.say("go")
    done = answers(processes, "exchanged", EXCHANGE_TIMEOUT_S)
    return float(max(answer["ns"] for answer in done) - go_ns) / 1e9


def measure_tcpstore(ranks: int, out: Path) -> dict[str, Any]:
    """The fields `tcpstore_...` of one world; if it cannot be measured, a note says why."""
    try:
        return _measure(ranks, out)
    except BenchError as error:
        return {"tcpstore_seconds": None, "tcpstore_note": f"not measured: {error}"}


def _measure(ranks: int, out: Path) -> dict[str, Any]:
    if not _allow_descriptors(ranks):
        raise BenchError(f"{ranks} clients need more open files than `ulimit -Hn` allows")
    log = out / "logs"
    python = [*_without_name_server(out), sys.executable]
    with ExitStack() as stack:
        server = stack.enter_context(
            LineProcess("the TCPStore's server", [*python, JOB, "serve"], log / "tcpstore-server.log")
        )
        port = answers([server], "listening", CONNECT_TIMEOUT_S)[0]["port"]
        shares = [ranks // PROCESSES + (index < ranks % PROCESSES) for index in range(PROCESSES)]
        processes = []
        for index, share in enumerate(shares):
            command = [*python, JOB, "clients", *map(str, (port, sum(shares[:index]), share, ranks))]
            name = f"TCPStore clients {index}"
            processes.append(stack.enter_context(LineProcess(name, command, log / f"tcpstore-{index}.log")))
        connected = answers(processes, "connected", CONNECT_TIMEOUT_S)
        slowest_ns = max(answer["ns"] - answer["from_ns"] for answer in connected)
        fields: dict[str, Any] = {
            "tcpstore_connect_seconds": round(slowest_ns / 1e9, 4),
            "tcpstore_neighbour_seconds": round(_exchange(processes, "neighbour"), 4),
            "tcpstore_multi_get_seconds": None,
        }
        if ranks <= MULTI_GET_UP_TO:
            fields["tcpstore_multi_get_seconds"] = round(_exchange(processes, "multi_get"), 4)
        if ranks <= ALL_GETS_UP_TO:
            fields["tcpstore_seconds"] = round(_exchange(processes, "gets"), 4)
            fields["tcpstore_note"] = "everyone reads everyone's address, one get each"
        else:
            fields["tcpstore_seconds"] = fields["tcpstore_neighbour_seconds"]
            fields["tcpstore_note"] = "everyone reads only one neighbour's address: all would take minutes to hours"
        for process in [*processes, server]:
            process.end_input()
        return fields
