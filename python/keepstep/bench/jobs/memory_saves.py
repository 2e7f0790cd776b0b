"""The job of `keepstep bench memory`, under torchrun: one state saved in turns to the memory server and to a disk.

Each rank writes one JSON file: a row per save, and the times to load the newest version again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from keepstep.torch.checkpoint import LoadPlanner, Reader, Writer

TENSOR_BYTES = 8_000_000  # of each rank's part of a tensor
# Alternating, so that none always comes after the same one. What two ways in memory have alike is held once, so the
# first one's bytes are those that count.
WAYS = ("memory", "disk", "memory_reused", "disk_reused")


class State:
    """Tensors that are sharded over all ranks; the first ones change from version to version."""

    def __init__(self, megabytes: int, part: float) -> None:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        count = max(1, round(megabytes * 1e6 / TENSOR_BYTES))
        self._random = torch.Generator().manual_seed(dist.get_rank())
        local = [torch.randn(TENSOR_BYTES // 4, generator=self._random) for _ in range(count)]
        self.changing = local[: round(part * count)]
        self.local = local
        self.tensors = {f"t{i}": DTensor.from_local(each, mesh, [Shard(0)]) for i, each in enumerate(local)}
        self.bytes = count * TENSOR_BYTES

    def change(self) -> None:
        for tensor in self.changing:
            tensor.normal_(generator=self._random)


class Way:
    """`reused`: all saves share one stager, which keeps its buffers."""

    def __init__(self, name: str, folder: Path) -> None:
        self.memory = name.startswith("memory")
        self._place = f"memory://{name}" if self.memory else str(folder / name)
        self._group = dist.new_group(backend="gloo")
        self._stager = DefaultStager(StagingOptions(False, False, False, False)) if name.endswith("reused") else None

    def save(self, state: State, step: int) -> dict[str, float]:
        where: dict[str, Any] = {"storage_writer": Writer(self._place, step, job="bench")}
        if not self.memory:
            where = {"checkpoint_id": f"{self._place}/{step}"}
        begun = time.perf_counter()
        answer = dcp.async_save(dict(state.tensors), process_group=self._group, async_stager=self._stager, **where)
        stalled = time.perf_counter()
        upload = answer.upload_completion if isinstance(answer, AsyncSaveResponse) else answer
        upload.result()
        return {"stall_s": stalled - begun, "saved_s": time.perf_counter() - begun}

    def load(self, state: State, step: int) -> float:
        before = [tensor.clone() for tensor in state.local]
        for tensor in state.local:
            tensor.zero_()
        dist.barrier()
        begun = time.perf_counter()
        if self.memory:
            dcp.load(dict(state.tensors), storage_reader=Reader(self._place, step), planner=LoadPlanner())
        else:
            dcp.load(dict(state.tensors), checkpoint_id=f"{self._place}/{step}")
        took = time.perf_counter() - begun
        assert all(old.equal(new) for old, new in zip(before, state.local, strict=True)), "it is not what was saved"
        return took


def stored(way: Way, name: str, folder: Path) -> int:
    """Bytes in memory, or of files."""
    if way.memory:
        command = [os.environ["KEEPSTEP_COMMAND"], "memory", "status", "--json"]
        asked = subprocess.run(command, check=False, capture_output=True)
        return int(json.loads(asked.stdout)["used_bytes"]) if asked.returncode == 0 else 0  # the first save starts it
    return sum(path.stat().st_blocks * 512 for path in (folder / name).rglob("*"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="for what is saved to the disk")
    parser.add_argument("--megabytes", type=int, required=True, help="of each rank")
    parser.add_argument("--part", type=float, required=True, help="of the state that changes between two versions")
    parser.add_argument("--versions", type=int, required=True)
    parser.add_argument("--loads", type=int, required=True)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    state = State(options.megabytes, options.part)
    ways = {name: Way(name, options.folder) for name in WAYS}
    rows: list[dict[str, Any]] = []
    loads: list[dict[str, Any]] = []
    for step in range(1, options.versions + 1):
        order = WAYS if step % 2 else WAYS[::-1]
        for name in order:
            state.change()
            way = ways[name]
            before = stored(way, name, options.folder)
            dist.barrier()
            row = way.save(state, step)
            dist.barrier()
            rows.append({"way": name, "step": step, "stored": stored(way, name, options.folder) - before, **row})
            dist.barrier()
            if step == options.versions and name in ("memory", "disk"):
                loads += [{"way": name, "load_s": way.load(state, step)} for _ in range(options.loads)]
    name = f"rank{dist.get_rank()}.json"
    (options.out / name).write_text(json.dumps({"rows": rows, "loads": loads, "bytes": state.bytes}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
