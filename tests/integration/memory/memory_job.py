"""A job for tests of checkpoints in memory, for any launcher: ``memory_job.py save|load|die URL ...``.

Its state is a sharded tensor (a DTensor over all ranks), a replicated one that never changes, and small values; all of
it follows from the step, so whoever loads it knows what it must be.
"""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from keepstep.torch.checkpoint import LoadPlanner, Reader, Writer

ROWS, COLUMNS = 512, 1024


def whole(step):
    return torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(step))


def frozen():
    return torch.randn(1024, 1024, generator=torch.Generator().manual_seed(12345))


def state(step, mesh):
    return {
        "model": {"sharded": distribute_tensor(whole(step), mesh, [Shard(0)]), "frozen": frozen()},
        "step": step,
        "note": "x" * step,  # its length changes: what lies after it moves
    }


def save(mesh, url, first, last, kind, *options):
    kept = dict(option.split("=") for option in options)
    for step in range(int(first), int(last) + 1):
        # A drain, too, is a matter of the Writer alone.
        writer = Writer(
            url, step, keep=int(kept["keep"]) if "keep" in kept else None, drain=kept.get("drain"), job="job"
        )
        if kind == "async":
            future = dcp.async_save(state(step, mesh), storage_writer=writer)
            getattr(future, "upload_completion", future).result()
        else:
            dcp.save(state(step, mesh), storage_writer=writer)
        if dist.get_rank() == 0:
            print(f"saved {step}", flush=True)
    dist.barrier()
    os.write(1, f"pid {os.getpid()}\n".encode())  # at once: other ranks write there too
    if "end" not in kept:
        time.sleep(600)  # until it is killed


class Dying(Writer):
    """Kills the rank `where` of the process that reaches it says."""

    where = ""

    def _at(self, where):
        if where == Dying.where:
            os.kill(os.getpid(), signal.SIGKILL)

    def _write(self, plan, planner):
        results = super()._write(plan, planner)
        self._at("written")
        return results

    def _new_file(self, mine, expected_bytes):
        self._at("begin")
        file = super()._new_file(mine, expected_bytes)
        if Dying.where == "file":
            file.append(b"x" * (5 << 20))
            os.kill(os.getpid(), signal.SIGKILL)
        return file

    def _complete(self, manifest, metadata):
        self._at("complete")
        super()._complete(manifest, metadata)
        self._at("completed")


def die(mesh, url, step, where):
    Dying.where = where
    dcp.save(state(int(step), mesh), storage_writer=Dying(url, int(step), job="job"))


def load(mesh, url, step):
    target = state(0, mesh)
    target["model"]["frozen"].zero_()
    reader = Reader(url)
    dcp.load(target, storage_reader=reader, planner=LoadPlanner())
    assert reader.step == int(step), reader.step
    assert target["step"] == int(step) and target["note"] == "x" * int(step)
    assert target["model"]["sharded"].full_tensor().equal(whole(int(step)))
    assert target["model"]["frozen"].equal(frozen())
    if dist.get_rank() == 0:
        print(f"loaded {step} on {dist.get_world_size()} ranks, equal", flush=True)


def main():
    what, *arguments = sys.argv[1:]
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    {"save": save, "load": load, "die": die}[what](mesh, *arguments)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
