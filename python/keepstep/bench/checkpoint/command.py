"""``keepstep bench checkpoint``: what copies of sharded state after every step cost, against torch's ways of saving.

Steps compute for a given time on all ranks at once; steps with copies, and without, take turns in one job. On one node
a copy goes into the agent's memory; on two nodes (two launchers, over loopback) to the other node as well.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keepstep.bench.checkpoint.figures import against, of_copies, of_saves
from keepstep.bench.harness.arguments import PLANES, count, numbers, some_of
from keepstep.bench.harness.environment import JOBS, BenchError, free_port, job_environment, keepstep_command, machine
from keepstep.bench.harness.keepstep_nodes import NODES, Launchers
from keepstep.bench.harness.processes import Job, Processes
from keepstep.bench.harness.waiting import progress_bar, wait_for_end

ASYNC_SAVES = ("thread", "thread_reused", "thread_background", "process", "process_reused", "process_background")
OPPONENTS = {"dcp": ASYNC_SAVES, "torch_save": ("torch_save",)}
# In memory at once: the state, memcpy's source and target, two versions here and two on the other node.
TIMES_THE_STATE = 7
START_S = 180.0


@dataclass(frozen=True)
class Size:
    """`megabytes` of state per rank, in steps of `step_s`."""

    megabytes: int
    step_s: float

    def arguments(self, out: Path, rounds: int) -> list[str]:
        return [
            *("--out", str(out), "--bytes", str(self.megabytes * 1_000_000)),
            *("--step-s", str(self.step_s), "--rounds", str(rounds)),
        ]


def size(text: str) -> Size:
    """``500:5``: megabytes per rank, and seconds per step."""
    megabytes, _, seconds = text.partition(":")
    try:
        found = Size(int(megabytes), float(seconds))
    except ValueError:
        found = Size(0, 0.0)
    if found.megabytes < 1 or not 0.0 < found.step_s < 3600.0:
        raise argparse.ArgumentTypeError(
            f"'{text}': megabytes per rank and seconds of a step are needed, as in 500:5 (several with commas)"
        )
    return found


def sizes(text: str) -> list[Size]:
    return [size(part) for part in text.split(",")]


def _answers(out: Path, world: int) -> list[dict[str, Any]]:
    return [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(world)]


def _check_memory(world: int, chosen: Size) -> None:
    need = world * chosen.megabytes * 1_000_000 * TIMES_THE_STATE
    lines = Path("/proc/meminfo").read_text().splitlines()
    have = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    if need > have:
        raise BenchError(
            f"{world} ranks with {chosen.megabytes} MB each need {need / 1e9:.1f} GB of memory for the comparison, and "
            f"{have / 1e9:.1f} GB are free; choose smaller --sizes or --worlds"
        )


def measure_copies(folder: Path, world: int, nodes: int, chosen: Size, rounds: int, plane: str) -> dict[str, Any]:
    """Our job of `world` ranks on `nodes` nodes with this data plane."""
    out = folder / f"keepstep-{world}-{nodes}-{chosen.megabytes}"
    out.mkdir()
    script = [str(JOBS / "checkpoint_copies.py"), *chosen.arguments(out, rounds)]
    what = f"keepstep's job of {world} ranks on {nodes} nodes"
    limit_s = START_S + (8 * rounds + 4) * 4 * chosen.step_s
    with Processes() as processes:
        if nodes == 1:
            command = [keepstep_command(), "run", "--nproc-per-node", str(world), *script]
            wait_for_end(what, processes.start(command, job_environment(), out / "log.txt"), limit_s)
        else:
            launchers = Launchers(
                processes, out, world // NODES, 0, ["--spares", "0", "--data-plane", plane], script, job_environment()
            )
            for job in launchers.jobs.values():
                wait_for_end(what, job, limit_s)
    return {"ranks": world, "nodes": nodes, "megabytes": chosen.megabytes} | of_copies(_answers(out, world))


def measure_saves(folder: Path, disk: Path, world: int, chosen: Size, rounds: int, ways: list[str]) -> dict[str, Any]:
    """torchrun's job of `world` ranks; a row for each of `ways`."""
    out = folder / f"torchrun-{world}-{chosen.megabytes}"
    out.mkdir()
    with tempfile.TemporaryDirectory(prefix="keepstep-bench-", dir=disk) as saved, Processes() as processes:
        job: Job = processes.start(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", str(world)),
                *("--master-addr", "127.0.0.1", "--master-port", str(free_port())),
                *(str(JOBS / "checkpoint_saves.py"), *chosen.arguments(out, rounds)),
                *("--folder", saved, "--ways", ",".join(ways)),
            ],
            job_environment(),
            out / "log.txt",
        )
        steps = len(ways) * (4 * rounds + 1)
        wait_for_end(f"torchrun's job of {world} ranks", job, START_S + (steps + 2) * 4 * chosen.step_s)
    return of_saves(_answers(out, world))


def _line(row: dict[str, Any]) -> str:
    where = "1 node" if row["nodes"] == 1 else f"{row['nodes']} nodes"
    text = (
        f"{row['megabytes']} MB x {row['ranks']} ranks, {where}, steps of {row['step_s']:.2f} s: blocked "
        f"{1e3 * row['blocked_s']:.2f} ms ({100 * row['share']:.2f}%), slowed {1e3 * row['slowed_s']:.0f} ms, "
        f"{row['waits']} waits of {row['copies']}; to memory {100 * row['share_of_memcpy']:.0f}% of memcpy"
    )
    if row["share_of_loopback"] is not None:
        text += f", to the other node {100 * row['share_of_loopback']:.0f}% of loopback"
    if row.get("ratio") is not None:
        text += f"; async_save blocks {row['ratio']:.1f} times as long, slows {row['slowed_ratio']:.1f} times as much"
    return text


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="keepstep bench checkpoint", description=__doc__)
    parser.add_argument("--against", type=some_of(OPPONENTS), default=[], help="dcp, torch_save, or both with a comma")
    parser.add_argument(
        "--sizes",
        type=sizes,
        default="50:0.5,500:5",
        help="MB of state per rank and seconds of a step, with commas (default %(default)s)",
    )
    parser.add_argument("--worlds", type=numbers, default="2,4", help="numbers of ranks (default %(default)s)")
    parser.add_argument(
        "--nodes", type=numbers, default="1,2", help="numbers of nodes, of 1 and 2 (default %(default)s)"
    )
    parser.add_argument("--data-plane", choices=PLANES, default="tls", help="between nodes (default %(default)s)")
    parser.add_argument("--rounds", type=count, default=3, help="turns of each kind of step (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="2 ranks, one turn: a few minutes")
    parser.add_argument("--folder", type=Path, help="on the disk that torch saves to (default: a temporary one)")
    parser.add_argument("--json", action="store_true", help="print the JSON object only")
    options = parser.parse_args(arguments)
    if options.quick:
        options.worlds, options.rounds = [2], 1
    cases = [
        (chosen, world, [nodes for nodes in options.nodes if nodes <= NODES and world % nodes == 0])
        for chosen in options.sizes
        for world in options.worlds
    ]
    ways = [way for name in options.against for way in OPPONENTS[name]]
    say: Callable[[str], None] = (lambda text: None) if options.json else print
    rows: list[dict[str, Any]] = []
    saves: list[dict[str, Any]] = []
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="keepstep-bench-") as name, progress_bar() as bar:
        folder = Path(name)
        task = bar.add_task("checkpoint", total=sum(len(nodes) + bool(ways) for _, _, nodes in cases), note="jobs")
        for chosen, world, of_nodes in cases:
            _check_memory(world, chosen)
            theirs = None
            if ways:
                theirs = measure_saves(folder, options.folder or folder, world, chosen, options.rounds, ways)
                saves.append({"ranks": world, "megabytes": chosen.megabytes} | theirs)
                bar.advance(task)
            for nodes in of_nodes:
                row = measure_copies(folder, world, nodes, chosen, options.rounds, options.data_plane)
                if theirs is not None:
                    row |= against(row, theirs)
                rows.append(row)
                bar.advance(task)
                say(_line(row))
    result: dict[str, Any] = {"share": max(row["share"] for row in rows)}
    for field in ("ratio", "slowed_ratio"):
        known = [row[field] for row in rows if row.get(field) is not None]
        result[field] = min(known) if known else None
    result |= {"cases": rows, "saves": saves, "rounds": options.rounds, "data_plane": options.data_plane}
    print(json.dumps(result | {"environment": machine() | {"load_before": load_before}}))
    return 0
