"""Everything DDP and torch.distributed object calls need, over backend "keepstep", each against its definition."""

import sys

import torch
import torch.distributed as dist

import keepstep


@keepstep.recoverable
def check(run):
    model = run.setup(lambda: keepstep.State(model=torch.nn.Linear(2, 2))).model
    run.ddp(model)
    rank, world = run.rank, run.world_size
    ranks = list(range(world))

    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8):
        tensor = torch.full((1001,), rank + 1, dtype=dtype)
        dist.all_reduce(tensor)
        assert torch.equal(tensor, torch.full((1001,), sum(r + 1 for r in ranks), dtype=dtype)), dtype
    transposed = torch.arange(6.0).reshape(2, 3).t() + rank
    dist.all_reduce(transposed, op=dist.ReduceOp.MAX)
    assert torch.equal(transposed, torch.arange(6.0).reshape(2, 3).t() + world - 1)

    tensor = torch.full((5,), float(rank))
    dist.broadcast(tensor, src=world - 1)
    assert torch.equal(tensor, torch.full((5,), float(world - 1)))

    gathered = [torch.zeros(3) for _ in ranks]
    dist.all_gather(gathered, torch.full((3,), float(rank)))
    assert [g[0].item() for g in gathered] == [float(r) for r in ranks]
    flat = torch.zeros(world * 3)
    dist.all_gather_into_tensor(flat, torch.full((3,), float(rank)))
    assert torch.equal(flat, torch.arange(world).repeat_interleave(3).float())

    output = torch.zeros(4)
    dist.reduce_scatter(output, [torch.full((4,), float(rank * 10 + r)) for r in ranks])
    assert torch.equal(output, torch.full((4,), float(sum(r * 10 + rank for r in ranks))))
    output = torch.zeros(2)
    dist.reduce_scatter_tensor(output, torch.arange(2.0 * world) + rank)
    assert torch.equal(output, sum((torch.arange(2.0 * world) + r)[2 * rank : 2 * rank + 2] for r in ranks))

    tensor = torch.full((3,), float(rank))
    dist.reduce(tensor, dst=0)
    if rank == 0:
        assert torch.equal(tensor, torch.full((3,), float(sum(ranks))))
    sink = [torch.zeros(2) for _ in ranks] if rank == 0 else None
    dist.gather(torch.full((2,), float(rank)), sink, dst=0)
    if rank == 0:
        assert [s[0].item() for s in sink] == [float(r) for r in ranks]
    output = torch.zeros(2)
    dist.scatter(output, [torch.full((2,), float(r)) for r in ranks] if rank == 0 else None, src=0)
    assert output[0].item() == float(rank)

    outputs = [torch.zeros(2) for _ in ranks]
    dist.all_to_all(outputs, [torch.full((2,), float(rank * 100 + r)) for r in ranks])
    assert [o[0].item() for o in outputs] == [float(r * 100 + rank) for r in ranks]
    output = torch.zeros(world)
    dist.all_to_all_single(output, torch.arange(float(world)) + 10 * rank)
    assert torch.equal(output, torch.tensor([float(rank + 10 * r) for r in ranks]))

    right, left = (rank + 1) % world, (rank - 1) % world
    received = torch.zeros(100_000)
    works = [dist.isend(torch.full((100_000,), float(rank)), right, tag=1), dist.irecv(received, left, tag=1)]
    for work in works:
        work.wait()
    assert torch.equal(received, torch.full((100_000,), float(left)))

    objects = [None] * world
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank})
    assert objects == [{"rank": r, "text": "x" * r} for r in ranks]
    one = [{"from": 0}] if rank == 0 else [None]
    dist.broadcast_object_list(one, src=0)
    assert one == [{"from": 0}]

    leaves = [torch.randn(3000, generator=torch.Generator().manual_seed(i)) * 10.0**i for i in range(7)]
    expected = keepstep.reduce.tree_sum(leaves, divisor=7)
    sums = keepstep.reduce.Sum(like=leaves[0])
    sums.begin(7)
    for i in sums.run:
        sums.add(leaves[i])
    assert torch.equal(sums.all_reduce(weight=len(sums.run)), expected)
    out = torch.zeros(3000)
    sums.all_reduce(weight=len(sums.run), out=out, async_op=True).get_future().wait()
    assert torch.equal(out, expected)
    try:
        sums.begin(7, range(rank, rank + 1))
        sums.add(leaves[0])
        sums.all_reduce()
        raise AssertionError("leaves are missing")
    except RuntimeError as error:
        assert f"leaves [{world}, 7) of 7 are nobody's" in str(error), error

    if world >= 3:
        group = dist.new_group([2, 0])
        if rank in (0, 2):
            tensor = torch.tensor([float(rank + 1)])
            dist.all_reduce(tensor, group=group)
            assert tensor.item() == 4.0
            sums.begin(7, keepstep.reduce.share(7, group))
            for i in sums.run:
                sums.add(leaves[i])
            assert torch.equal(sums.all_reduce(weight=len(sums.run), group=group), expected)
    for turn in range(100):  # a generation has 16 places for groups: destroyed ones give theirs back
        group = dist.new_group(ranks[turn % world :])
        if rank >= turn % world:
            tensor = torch.ones(1)
            dist.all_reduce(tensor, group=group)
            assert tensor.item() == world - turn % world
            dist.destroy_process_group(group)
    work = dist.all_reduce(torch.ones(10), async_op=True)
    future = work.get_future()
    future.wait()
    assert future.value()[0][0].item() == world
    dist.barrier()
    print(f"rank {rank}: all collectives agree", flush=True)


check()
sys.exit(0)
