"""A script of torchrun's: FSDP2 or HSDP, saved and loaded through DCP with keepstep's plug-ins.

dcp_sharded.py save|load|async URL STEP BACKEND [REPLICAS]: rank 0 prints one JSON object with sums of the full state.
"""

import atexit
import json
import os
import sys
import zlib

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from keepstep.torch.checkpoint import LoadPlanner, Reader, Writer

what, url, step, backend = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
replicas = int(sys.argv[5]) if len(sys.argv) > 5 else 1
dist.init_process_group(backend)
world = dist.get_world_size()


def built(seed):
    """A model and an optimizer that has made a step. Its layers cannot be cut evenly."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(10, 7), torch.nn.LayerNorm(7), torch.nn.Linear(7, 3, bias=False))
    if replicas > 1:
        mesh = init_device_mesh("cpu", (replicas, world // replicas), mesh_dim_names=("replicate", "shard"))
    else:
        mesh = init_device_mesh("cpu", (world,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01 * seed)
    torch.manual_seed(dist.get_rank())
    model(torch.randn(4, 10)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def state_of(model, optimizer):
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "step": step}


def sums(value, name="", found=None):
    """CRC-32 of every whole tensor, and what is no tensor as it is."""
    found = {} if found is None else found
    if isinstance(value, dict):
        for key in value:
            sums(value[key], f"{name}.{key}", found)
    elif isinstance(value, torch.Tensor):
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        found[name] = zlib.crc32(whole.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    else:
        found[name] = str(value)
    return found


if what in ("save", "async"):
    model, optimizer = built(seed=1)
    state = state_of(model, optimizer)
    told = sums(state)  # before: it communicates, as a save in the background does
    if what == "save":
        dcp.save(state, storage_writer=Writer(url, step, job="sharded"))
    else:
        future = dcp.async_save(state, storage_writer=Writer(url, step, job="sharded"))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()  # training goes on while it is written
        getattr(future, "upload_completion", future).result()
else:
    model, optimizer = built(seed=2)
    state = state_of(model, optimizer)
    reader = Reader(url, step or None)
    dcp.load(state, storage_reader=reader, planner=LoadPlanner())
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    told = sums({**state_of(model, optimizer), "step": state["step"]})
    if url.startswith("/"):  # DCP alone, into another model
        other = state_of(*built(seed=3))
        dcp.load(other, checkpoint_id=os.path.join(url, f"step-{reader.step:012}"))
        assert sums(other) == sums({**state_of(model, optimizer), "step": state["step"]})
if dist.get_rank() == 0:
    print(json.dumps(told), flush=True)
dist.barrier()
dist.destroy_process_group()
if backend == "gloo":
    # Gloo's thread drops a collective's tensors after the call returned. Where Python is ending by then, it cannot get
    # the GIL for those that belong to Python, and torch aborts the process (2.15 with Python 3.11, under load).
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(0)
