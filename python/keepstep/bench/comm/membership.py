"""``keepstep bench membership``: what the coordinator's brain costs at 1,000, 10,000 and 100,000 ranks.

The brain that ships runs in a job that is played: no processes, no network. So this is what decisions cost, and the
messages that they make; what the network adds is ``keepstep bench rendezvous``'s.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
from typing import Any

from keepstep.bench.harness.arguments import count, numbers
from keepstep.bench.harness.environment import BenchError, bench_program, machine


def measure(ranks: int, ranks_per_node: int, rounds: int) -> dict[str, Any]:
    done = subprocess.run(
        [bench_program("keepstep_membership_bench"), str(ranks), str(ranks_per_node), str(rounds)],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    if done.returncode != 0:
        raise BenchError(f"keepstep_membership_bench ended with {done.returncode}: {done.stderr.strip()}")
    found = json.loads(done.stdout)
    return {
        "ranks": ranks,
        "nodes": ranks // ranks_per_node,
        "tick_us": round(statistics.median(found["tick_us"]), 3),
        "fault_us": round(statistics.median(found["fault_us"]), 1),
        "bytes_per_node": found["bytes_per_node"],
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="keepstep bench membership", description=__doc__)
    parser.add_argument(
        "--ranks", type=numbers, default="1000,10000,100000", help="comma separated (default: 1000,10000,100000)"
    )
    parser.add_argument("--ranks-per-node", type=count, default=8, help="(default: 8)")
    parser.add_argument("--rounds", type=count, default=5, help="of which the median counts (default: 5)")
    parser.add_argument("--json", action="store_true", help="only the JSON object")
    options = parser.parse_args(arguments)
    worlds = []
    for ranks in options.ranks:
        world = measure(ranks, options.ranks_per_node, options.rounds)
        worlds.append(world)
        if not options.json:
            print(
                f"{ranks:>7} ranks on {world['nodes']:>6} nodes: a tick {world['tick_us']:.2f} us, a fault "
                f"{world['fault_us'] / 1e3:.2f} ms, {world['bytes_per_node']} bytes to the node that lost a rank"
            )
    print(json.dumps({"worlds": worlds, "machine": machine()}))
    return 0
