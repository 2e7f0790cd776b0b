"""Calls with lists of tensors, and averages of integers: tensor_lists.py BACKEND STORE RANK WORLD.

Prints what each call gave as JSON: the same with every backend that can do it.
"""

import datetime
import json
import sys

import torch
import torch.distributed as dist

backend, store, rank, world = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
dist.init_process_group(
    backend, init_method=f"file://{store}", rank=rank, world_size=world, timeout=datetime.timedelta(seconds=60)
)
group = dist.group.WORLD
found = {}


def options(kind, **values):
    made = kind()
    for name, value in values.items():
        setattr(made, name, value)
    return made


def lists(tensors):
    return [lists(tensor) if isinstance(tensor, (list, tuple)) else tensor.tolist() for tensor in tensors]


def two(step=1.0):
    return [torch.full((3,), 2.0 * rank), torch.full((3,), 2.0 * rank + step)]


for name in ("SUM", "PRODUCT", "MIN", "MAX"):  # of an average Gloo divides the first tensor only
    tensors = two()
    group.allreduce(tensors, options(dist.AllreduceOptions, reduceOp=getattr(dist.ReduceOp, name))).wait()
    found[f"all_reduce of two, {name}"] = lists(tensors)

sparse = [torch.sparse_coo_tensor([[rank]], [1.0 + i], size=(world,)) for i in range(2)]
group.allreduce(sparse).wait()
found["all_reduce of two that are sparse"] = lists([tensor.to_dense() for tensor in sparse])

for root_tensor in (0, 1):
    tensors = two()
    group.broadcast(tensors, options(dist.BroadcastOptions, rootRank=1, rootTensor=root_tensor)).wait()
    found[f"broadcast of tensor {root_tensor}"] = lists(tensors)

outputs = [[torch.zeros(3) for _ in range(2 * world)] for _ in range(2)]
group.allgather(outputs, two()).wait()
found["all_gather of two"] = lists(outputs)

twice = torch.full((4,), rank + 1.0)
group.allreduce_coalesced([twice, twice]).wait()
found["one tensor twice"] = twice.tolist()

whole = torch.arange(6.0) + rank
group.allreduce_coalesced([whole[:4], whole[2:]]).wait()
found["views that overlap: what only one has"] = [*whole[:2].tolist(), *whole[4:].tolist()]

inputs = [torch.full((i,), float(10 * rank + i)) for i in range(world)]
for name in ("SUM", "AVG"):
    output = torch.empty(rank)
    dist.reduce_scatter(output, inputs, op=getattr(dist.ReduceOp, name))
    found[f"uneven reduce_scatter, {name}"] = output.tolist()

with torch.inference_mode():
    gathered = [torch.zeros(2, 2)[:, 0] for _ in range(world)]
    work = group.allgather([gathered], [torch.tensor([rank, rank + 1.0])])
    work.get_future().wait()
    found["inference mode"] = lists(gathered)

wrong = {
    "no tensor at the root": lambda: group.scatter([torch.zeros(1)], [], options(dist.ScatterOptions, rootRank=rank)),
    "no such root": lambda: group.reduce([torch.zeros(1)], options(dist.ReduceOptions, rootRank=world)),
    "another size": lambda: group.allreduce([torch.zeros(1), torch.zeros(2)]),
    "another type": lambda: group.gather(
        [[torch.zeros(1, dtype=torch.int64)] * world], [torch.zeros(1)], options(dist.GatherOptions, rootRank=rank)
    ),
    "too few outputs": lambda: group.allgather([[torch.zeros(1)]], [torch.zeros(1)]),
}
for name, call in wrong.items():
    try:
        call()
        found[name] = "no error"
    except RuntimeError as error:
        found[name] = str(error).split(": ", 1)[-1].split(" (")[0].split("\n")[0].split(" at index")[0].rstrip(".")

if backend == "keepstep":  # Gloo refuses them; NCCL rounds towards zero
    averages = {}
    for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        data = torch.tensor([3 + rank, 7]).to(dtype)
        dist.all_reduce(data, op=dist.ReduceOp.AVG)
        averages[str(dtype)] = data.tolist()
    negative = torch.tensor([-1 if rank == 0 else 0, -3])
    dist.all_reduce(negative, op=dist.ReduceOp.AVG)
    found["averages of integers"] = [averages, negative.tolist()]

print(json.dumps(found))
dist.barrier()
dist.destroy_process_group()
