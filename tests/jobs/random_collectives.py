"""Random collectives by both backends, results compared: ``random_collectives.py STORE RANK WORLD SEED COUNT``.

Values are small whole numbers, so that sums are exact in every dtype and order.
"""

import random
import sys

import torch
import torch.distributed as dist

import keepstep.torch  # noqa: F401

store, rank, world, seed, count = sys.argv[1], *(int(part) for part in sys.argv[2:6])
dist.init_process_group("keepstep", init_method=f"file://{store}", rank=rank, world_size=world)
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.uint8, torch.int32, torch.int64]
OPS = [dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX]
BITWISE = [dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR]
KINDS = (
    "all_reduce all_reduce all_reduce reduce broadcast all_gather all_gather_into reduce_scatter reduce_scatter_tensor "
    "gather scatter all_to_all all_to_all_single send barrier"
).split()

common = random.Random(seed)  # the same choices on every rank
members = [list(range(world))] + [sorted(common.sample(range(world), common.randint(2, world))) for _ in range(3)]
groups = [(ranks, dist.new_group(ranks), dist.new_group(ranks, backend="gloo")) for ranks in members]


def values(shape, dtype, number):
    low, high = (0, 3) if dtype in (torch.uint8, torch.int8) else (-3, 4)
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(number * 1000 + rank)).to(dtype)


for number in range(count):
    kind = common.choice(KINDS)
    ranks, ours, gloo = common.choice(groups)
    dtype = common.choice(FLOATS + INTEGERS)
    op = common.choice(OPS + (BITWISE if dtype in (torch.int32, torch.int64) else []))
    shape = [common.choice([1, 2, 3, 7]) for _ in range(common.randint(0, 3))] + [common.choice([1, 5, 64, 3001])]
    if common.random() < 0.05:
        shape = [200_003]
    if common.random() < 0.05:
        shape = [0]
    if kind == "send" and 0 in shape:
        shape = [1]  # Gloo cannot send nothing
    strided = common.random() < 0.2 and len(shape) > 1
    asynchronous = common.random() < 0.5
    root = common.choice(ranks)
    tag = common.randint(0, 3)
    peers = common.sample(ranks, 2)
    splits = [[common.randint(0, 4) for _ in ranks] for _ in ranks]
    if rank not in ranks:
        continue
    size, me = len(ranks), ranks.index(rank)

    def run(group):
        tensor = values(shape, dtype, number)
        if strided:
            tensor = tensor.transpose(0, -1).contiguous().transpose(0, -1)
        into = [torch.full(shape, 9).to(dtype) for _ in ranks]
        pieces = [values(shape, dtype, number + 7 * i) for i in range(size)]
        flat_shape = [size * shape[0], *shape[1:]]
        options = {"group": group, "async_op": asynchronous}
        match kind:
            case "all_reduce":
                work, result = dist.all_reduce(tensor, op=op, **options), [tensor]
            case "reduce":
                work = dist.reduce(tensor, dst=root, op=op, **options)
                result = [tensor] if rank == root else []
            case "broadcast":
                work, result = dist.broadcast(tensor, src=root, **options), [tensor]
            case "all_gather":
                work, result = dist.all_gather(into, tensor, **options), into
            case "all_gather_into":
                flat = torch.full(flat_shape, 9).to(dtype)
                work, result = dist.all_gather_into_tensor(flat, tensor.contiguous(), **options), [flat]
            case "reduce_scatter":
                work, result = dist.reduce_scatter(into[0], pieces, op=op, **options), [into[0]]
            case "reduce_scatter_tensor":
                work = dist.reduce_scatter_tensor(into[0], values(flat_shape, dtype, number), op=op, **options)
                result = [into[0]]
            case "gather":
                work = dist.gather(tensor, into if rank == root else None, dst=root, **options)
                result = into if rank == root else []
            case "scatter":
                work = dist.scatter(into[0], pieces if rank == root else None, src=root, **options)
                result = [into[0]]
            case "all_to_all":
                # Gloo has only the single one.
                outs = torch.full(flat_shape, 9).to(dtype)
                work, result = dist.all_to_all_single(outs, torch.cat(pieces), **options), [outs]
            case "all_to_all_single":
                given = values([sum(splits[me]), 3], dtype, number)
                take = [splits[other][me] for other in range(size)]
                outs = torch.full([sum(take), 3], 9).to(dtype)
                work, result = dist.all_to_all_single(outs, given, take, splits[me], **options), [outs]
            case "send":
                if rank == peers[0]:
                    work = dist.isend(tensor.contiguous(), peers[1], group=group, tag=tag)
                elif rank == peers[1]:
                    work = dist.irecv(into[0], None if number % 2 else peers[0], group=group, tag=tag)
                else:
                    return []
                work.wait()
                return [into[0]] if rank == peers[1] else []
            case _:
                work, result = dist.barrier(group=group, async_op=asynchronous), []
        if asynchronous and work is not None:
            if number % 3 == 0 and group is ours:  # Gloo's Works do not all have futures
                work.get_future().wait()
            work.wait()
        return result

    what = f"seed {seed}, number {number}: {kind} {op} {dtype} {shape} of ranks {ranks}, strided {strided}"
    got = run(ours)
    try:
        expected = run(gloo)
    except RuntimeError as error:
        if "Invalid scalar type" in str(error) or "not supported" in str(error).lower():
            continue  # Gloo has not this dtype
        raise
    for mine, theirs in zip(got, expected, strict=True):
        assert torch.equal(mine, theirs), f"{what}: {mine.flatten()[:8]} and {theirs.flatten()[:8]}"
dist.barrier()
dist.destroy_process_group()
print("equal")
