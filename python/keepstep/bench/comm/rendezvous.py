"""``keepstep bench rendezvous``: how long until every rank knows where every other one is.

From "all agents ask" to "every agent has decoded the rank table and named some peers": the real coordinator, and the
real stream, handshake and table for each agent of 8 ranks, over TCP. The agents share a few processes and only pretend
to have workers. Then one rank dies: until every agent has the next generation's table. Beside it torch's TCPStore.
The last line is one JSON object; times in it are seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from keepstep.bench.comm.tcpstore_rendezvous import measure_tcpstore
from keepstep.bench.harness.arguments import count
from keepstep.bench.harness.environment import keepstep_command, machine
from keepstep.bench.harness.line_process import LineProcess, answers

RANKS_PER_AGENT = 8
TIMEOUT_S = 300.0


def _worlds(text: str) -> list[int]:
    worlds = [int(part) for part in text.split(",") if part]
    for ranks in worlds:
        if ranks < RANKS_PER_AGENT or ranks % RANKS_PER_AGENT != 0:
            raise argparse.ArgumentTypeError(f"{ranks}: an agent has {RANKS_PER_AGENT} ranks, so a multiple of that")
    return worlds


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="keepstep bench rendezvous", description=__doc__)
    parser.add_argument(
        "--ranks", type=_worlds, default=[64, 1024, 4096, 16384], metavar="N,...", help="sizes of the world"
    )
    parser.add_argument("--against", choices=["tcpstore"], default=None, help="measure torch's TCPStore too")
    parser.add_argument("--repetitions", type=count, default=3, help="starts per world, medians count (default 3)")
    parser.add_argument("--reforms", type=count, default=5, help="replaced ranks per start (default %(default)s)")
    parser.add_argument("--processes", type=count, default=2, help="that share the agents (default %(default)s)")
    parser.add_argument("--journal", action="store_true", help="the coordinator writes a journal")
    parser.add_argument("--json", action="store_true", help="print the JSON object only")
    parser.add_argument("--out", type=Path, default=None, metavar="DIR", help="keep samples, logs and journals there")
    parser.add_argument("--seed", type=int, default=0, help="of the ranks that die and the peers that are named")
    return parser


class _Job:
    """One job: a coordinator, and processes with many agents each."""

    def __init__(self, stack: ExitStack, ranks: int, options: argparse.Namespace, out: Path, turn: int) -> None:
        command = [keepstep_command(), "rendezvous-bench"]
        self.ranks = ranks
        self.agents = ranks // RANKS_PER_AGENT
        self._share = -(-self.agents // min(options.processes, self.agents))
        token = secrets.token_hex(32)
        logs = out / "logs"
        self.coordinator = stack.enter_context(LineProcess("the coordinator", command, logs / "coordinator.log"))
        journal = str(out / "journals" / f"{ranks}-{turn}") if options.journal else ""
        self.coordinator.say(
            json.dumps(
                {"role": "coordinator", "token": token, "ranks": ranks, "nodes": self.agents, "journal": journal}
            )
        )
        address = answers([self.coordinator], "listening", TIMEOUT_S)[0]["address"]
        self.processes = []
        for index, first in enumerate(range(0, self.agents, self._share)):
            process = stack.enter_context(LineProcess(f"agents {index}", command, logs / f"agents-{index}.log"))
            process.say(
                json.dumps(
                    {
                        "role": "agents",
                        "token": token,
                        "address": address,
                        "first_node": first,
                        "nodes": min(self._share, self.agents - first),
                        "ranks": ranks,
                        "ranks_per_node": RANKS_PER_AGENT,
                        "seed": options.seed,
                    }
                )
            )
            self.processes.append(process)

    def until(self, event: str) -> list[dict[str, Any]]:
        return answers(self.processes, event, TIMEOUT_S)

    def say(self, word: str) -> int:
        now = time.monotonic_ns()
        for process in self.processes:
            process.say(word)
        return now

    def kill(self, node: int) -> int:
        """Kills the first rank of `node`; returns when it died."""
        process = self.processes[node // self._share]
        process.say(f"kill {node}")
        return int(answers([process], "killed", TIMEOUT_S)[0]["ns"])

    def cpu_seconds(self) -> float:
        """CPU time of all processes so far."""
        return sum(process.cpu_seconds() for process in [self.coordinator, *self.processes])


def _last(lines: list[dict[str, Any]]) -> int:
    return int(max(line["ns"] for line in lines))


def _start_once(ranks: int, options: argparse.Namespace, out: Path, turn: int) -> dict[str, Any]:
    """One start and its re-forms; times in seconds."""
    with ExitStack() as stack:
        job = _Job(stack, ranks, options, out, turn)
        connected = job.until("connected")
        connect_s = (_last(connected) - min(line["from_ns"] for line in connected)) / 1e9
        joined = job.say("join")
        spawn_s = (_last(job.until("spawned")) - joined) / 1e9
        cpu_before = job.cpu_seconds()
        asked = job.say("ask")
        tables = job.until("tables")
        cpu_s = job.cpu_seconds() - cpu_before
        activated_s = (_last(job.until("activated")) - asked) / 1e9
        reforms, reform_activated, reform_bytes = [], [], 0
        for index in range(options.reforms):
            killed = job.kill((options.seed + 7919 * (index + 1)) % job.agents)
            changed = job.until("tables")
            reforms.append((_last(changed) - killed) / 1e9)
            reform_activated.append((_last(job.until("activated")) - killed) / 1e9)
            reform_bytes = max(line["bytes"] for line in changed)
        return {
            "ranks": ranks,
            "seconds": (_last(tables) - asked) / 1e9,
            "cpu_seconds": cpu_s,
            "activated_seconds": activated_s,
            "connect_seconds": connect_s,
            "spawn_seconds": spawn_s,
            "reforms": reforms,
            "reforms_activated": reform_activated,
            "table_bytes": max(line["bytes"] for line in tables),
            "reform_bytes": reform_bytes,
        }


def measure(ranks: int, options: argparse.Namespace, out: Path) -> dict[str, Any]:
    """One world size: medians over the starts, and over all re-forms."""
    starts = [_start_once(ranks, options, out, turn) for turn in range(options.repetitions)]
    with (out / "samples.jsonl").open("a") as samples:
        for start in starts:
            samples.write(json.dumps(start) + "\n")

    def median(name: str) -> float:
        return float(round(statistics.median(start[name] for start in starts), 4))

    def median_of_all(name: str) -> float | None:
        values = [value for start in starts for value in start[name]]
        return round(statistics.median(values), 4) if values else None

    seconds = median("seconds")
    table_bytes = max(start["table_bytes"] for start in starts)
    return {
        "ranks": ranks,
        "agents": ranks // RANKS_PER_AGENT,
        "seconds": seconds,
        "worst_seconds": round(max(start["seconds"] for start in starts), 4),
        "microseconds_per_rank": round(seconds / ranks * 1e6, 2),
        "cpu_microseconds_per_rank": round(median("cpu_seconds") / ranks * 1e6, 2),
        "activated_seconds": median("activated_seconds"),
        "reform_seconds": median_of_all("reforms"),
        "reform_activated_seconds": median_of_all("reforms_activated"),
        "connect_seconds": median("connect_seconds"),
        "bytes_per_rank": round(table_bytes / ranks, 3),
        "table_bytes": table_bytes,
        "reform_bytes": max(start["reform_bytes"] for start in starts),
    }


@contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        yield out
        return
    with tempfile.TemporaryDirectory(prefix="keepstep-bench-") as folder:
        yield Path(folder)


def _line(world: dict[str, Any]) -> str:
    opponent = ""
    if "tcpstore_seconds" in world:
        took = world["tcpstore_seconds"]
        opponent = f"; TCPStore {'-' if took is None else f'{took:.3f} s'} ({world['tcpstore_note']})"
    reform = "-" if world["reform_seconds"] is None else f"{world['reform_seconds']:.3f} s"
    return (
        f"{world['ranks']} ranks: {world['seconds']:.3f} s; a rank {world['microseconds_per_rank']:.1f} us, "
        f"{world['cpu_microseconds_per_rank']:.1f} us of CPU, {world['bytes_per_rank']:.2f} bytes; re-form {reform} "
        f"with {world['reform_bytes']} bytes an agent; connecting took {world['connect_seconds']:.2f} s{opponent}"
    )


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    worlds = []
    load = os.getloadavg()[0]
    with _folder(options.out) as out:
        for ranks in options.ranks:
            world = measure(ranks, options, out)
            if options.against is not None:
                world |= measure_tcpstore(ranks, out)
            worlds.append(world)
            if not options.json:
                print(_line(world), flush=True)
        result = {
            "worlds": worlds,
            "repetitions": options.repetitions,
            "agent_processes": options.processes,
            "journal": options.journal,
            "load_before": load,
            "environment": machine(),
        }
        if options.out is not None:
            (out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    return 0
