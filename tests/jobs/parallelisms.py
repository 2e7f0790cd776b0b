"""What people build on torch.distributed, over one backend: ``parallelisms.py BACKEND STORE RANK WORLD OUT``.

DDP with comm hooks and no_sync, FSDP2, HSDP, tensor parallel, DCP, DeviceMesh. Writes the numbers that came out.
"""

import json
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import Replicate, Shard
from torch.nn.parallel import DistributedDataParallel

import keepstep.torch  # noqa: F401

backend, store, rank, world, out = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=world)
results = {}


def model():
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 16))


def batch(step):
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(100 * step + rank))


def train(wrapped, steps=4):
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-2)
    losses = []
    for step in range(steps):
        loss = wrapped(batch(step)).pow(2).mean()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append([loss.item(), (norm.full_tensor() if isinstance(norm, DTensor) else norm).item()])
    return losses


results["ddp"] = train(DistributedDataParallel(model()))

hooked = DistributedDataParallel(model())
hooked.register_comm_hook(None, default_hooks.bf16_compress_hook)
results["ddp with a comm hook"] = train(hooked)

quiet = DistributedDataParallel(model())
with quiet.no_sync():
    quiet(batch(0)).sum().backward()
quiet(batch(1)).sum().backward()
results["ddp no_sync"] = quiet.module[0].weight.grad.flatten()[:5].tolist()


def sharded(mesh):
    wrapped = model()
    for layer in wrapped:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(wrapped, mesh=mesh)


results["fsdp2"] = train(sharded(init_device_mesh("cpu", (world,))))
if world % 2 == 0:
    grid = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    results["hsdp"] = train(sharded(grid))

mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
split = parallelize_module(model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
same = torch.randn(8, 16, generator=torch.Generator().manual_seed(5))
results["tensor parallel"] = split(same).flatten()[:8].tolist()

whole = distribute_tensor(torch.arange(8.0 * world).reshape(world, 8), mesh, [Shard(0)])
results["redistribute"] = whole.redistribute(mesh, [Shard(1)]).redistribute(mesh, [Replicate()]).to_local().sum().item()

kept = sharded(init_device_mesh("cpu", (world,)))
shared = [tempfile.mkdtemp() if rank == 0 else None]
dist.broadcast_object_list(shared, src=0)
dcp.save({"model": kept.state_dict()}, checkpoint_id=shared[0])
other = sharded(init_device_mesh("cpu", (world,)))
with torch.no_grad():
    for parameter in other.parameters():
        parameter.zero_()
loaded = {"model": other.state_dict()}
dcp.load(loaded, checkpoint_id=shared[0])
results["dcp"] = [
    torch.equal(a.full_tensor(), b.full_tensor()) for a, b in zip(kept.parameters(), other.parameters(), strict=True)
]

with open(f"{out}-{backend}-{rank}.json", "w") as file:
    json.dump(results, file)
dist.barrier()
if rank == 0:
    import shutil

    shutil.rmtree(shared[0])
dist.destroy_process_group()
