"""``keepstep bench memory``: checkpoints in the memory server, against ``dcp.async_save`` to a disk, in one job.

Under torchrun, with the state sharded over all ranks. The ways of saving take turns: the memory server and the disk,
each with DCP's own stager, which allocates at every save, and with one that keeps its buffers. Nothing is computed
meanwhile. Between two saves a part of the state changes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from keepstep.bench.harness.arguments import count
from keepstep.bench.harness.environment import (
    JOBS,
    BenchError,
    free_port,
    job_environment,
    keepstep_command,
    machine,
)
from keepstep.bench.harness.processes import Processes
from keepstep.bench.harness.waiting import wait_for_end

# In memory at once: the state, two stagers' copies and one more, a copy to compare with, the versions in the server and
# those in the page cache.
COPIES_OF_THE_STATE = 5


def figures(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """What the ranks recorded: of each save the slowest rank, then the median of all but the first, which allocates."""
    ways: dict[str, dict[str, Any]] = {}
    names = dict.fromkeys(row["way"] for row in answers[0]["rows"])
    for name in names:
        saves = [[row for row in answer["rows"] if row["way"] == name] for answer in answers]
        worst = {
            field: [max(rank[i][field] for rank in saves) for i in range(len(saves[0]))]
            for field in ("stall_s", "saved_s")
        }
        ways[name] = {
            "stall_s": statistics.median(worst["stall_s"][1:] or worst["stall_s"]),
            "saved_s": statistics.median(worst["saved_s"][1:] or worst["saved_s"]),
            "stored_bytes": [row["stored"] for row in saves[0]],
        }
        loads = [[load["load_s"] for load in answer["loads"] if load["way"] == name] for answer in answers]
        if loads[0]:
            ways[name]["load_s"] = statistics.median(max(times) for times in zip(*loads, strict=True))
    ratio = {
        "stall": ways["disk"]["stall_s"] / ways["memory"]["stall_s"],
        "stall_reused": ways["disk_reused"]["stall_s"] / ways["memory_reused"]["stall_s"],
        "saved": ways["disk"]["saved_s"] / ways["memory"]["saved_s"],
        "saved_reused": ways["disk_reused"]["saved_s"] / ways["memory_reused"]["saved_s"],
        "load": ways["disk"]["load_s"] / ways["memory"]["load_s"],
        "stored": sum(ways["disk"]["stored_bytes"]) / sum(ways["memory"]["stored_bytes"]),
    }
    return {"ways": ways, "ratio": ratio, "state_bytes": sum(answer["bytes"] for answer in answers)}


def _check_memory(options: argparse.Namespace) -> None:
    need = options.world * options.megabytes * 1_000_000 * (COPIES_OF_THE_STATE + 4 * options.versions)
    lines = Path("/proc/meminfo").read_text().splitlines()
    have = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    if need > have:
        raise BenchError(
            f"{need / 1e9:.1f} GB of memory are needed and {have / 1e9:.1f} GB are free; choose smaller --megabytes or "
            "fewer --versions"
        )


def _measure(folder: Path, disk: Path, options: argparse.Namespace) -> dict[str, Any]:
    runtime = folder / "runtime"
    runtime.mkdir(mode=0o700)
    environment = job_environment() | {
        "XDG_RUNTIME_DIR": str(runtime), "KEEPSTEP_COMMAND": keepstep_command(), "KEEPSTEP_MEMORY_LIMIT": "90%"
    }  # fmt: skip
    environment.pop("KEEPSTEP_MEMORY_PEERS", None)
    script = [
        *(str(JOBS / "memory_saves.py"), "--out", str(folder), "--folder", str(disk)),
        *("--megabytes", str(options.megabytes), "--part", str(options.part)),
        *("--versions", str(options.versions), "--loads", str(options.loads)),
    ]
    # Processes ends the server, too, which a rank starts.
    with Processes() as processes:
        launcher = [
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node"),
            *(str(options.world), "--master-addr", "127.0.0.1", "--master-port", str(free_port())),
        ]
        job = processes.start([*launcher, *script], environment, folder / "log.txt")
        wait_for_end(f"torchrun's job of {options.world} ranks", job, options.limit)
        command = [keepstep_command(), "memory", "status", "--json"]
        told = json.loads(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)
    answers = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(options.world)]
    names = ("used_bytes", "logical_bytes", "unique_bytes", "stored_bytes", "chunks", "packed_chunks")
    return figures(answers) | {"server": {name: told[name] for name in names}}


def _line(name: str, way: dict[str, Any]) -> str:
    load = f", loaded in {way['load_s']:.2f} s" if "load_s" in way else ""
    megabytes = sum(way["stored_bytes"]) / 1e6
    return f"{name:<14} stalls {way['stall_s']:.3f} s, saved after {way['saved_s']:.2f} s, {megabytes:.0f} MB{load}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="keepstep bench memory", description=__doc__)
    parser.add_argument("--world", type=count, default=2, help="ranks (default %(default)s)")
    parser.add_argument("--megabytes", type=count, default=200, help="of state for each rank (default %(default)s)")
    parser.add_argument("--part", type=float, default=0.3, help="of it that changes (default %(default)s)")
    parser.add_argument("--versions", type=count, default=5, help="saves of each way (default %(default)s)")
    parser.add_argument("--loads", type=count, default=3, help="loads of each way (default %(default)s)")
    parser.add_argument("--limit", type=float, default=900, help="seconds for the job (default %(default)s)")
    parser.add_argument("--folder", type=Path, help="on the disk that is saved to (default: a temporary one)")
    parser.add_argument("--json", action="store_true", help="print the JSON object only")
    options = parser.parse_args(arguments)
    if min(options.world, options.megabytes, options.versions, options.loads) < 1 or not 0 <= options.part <= 1:
        parser.error("--world, --megabytes, --versions and --loads are at least 1, and --part is from 0 to 1")
    _check_memory(options)
    load_before = os.getloadavg()[0]
    with (
        tempfile.TemporaryDirectory(prefix="keepstep-bench-") as name,
        tempfile.TemporaryDirectory(prefix="keepstep-bench-", dir=options.folder) as disk,
    ):
        result = _measure(Path(name), Path(disk), options)
    if not options.json:
        for way, found in result["ways"].items():
            print(_line(way, found))
    settings = {name: getattr(options, name) for name in ("world", "megabytes", "part", "versions", "loads")}
    print(json.dumps(result | settings | {"environment": machine() | {"load_before": load_before}}))
    return 0
