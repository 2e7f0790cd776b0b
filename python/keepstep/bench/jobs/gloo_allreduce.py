"""One rank of Gloo's all_reduce, timed: RANK WORLD MASTER_IP PORT DEVICE REPEATS BYTES... Rank 0 prints JSON."""

import json
import os
import statistics
import sys
import time
from datetime import timedelta

rank, world, master, port, device, repeats = sys.argv[1:7]
os.environ["GLOO_SOCKET_IFNAME"] = device

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

torch.set_num_threads(1)
store = dist.TCPStore(master, int(port), int(world), int(rank) == 0, timedelta(seconds=60))
dist.init_process_group("gloo", store=store, rank=int(rank), world_size=int(world), timeout=timedelta(seconds=60))
results = {}
for size in sys.argv[7:]:
    data = torch.ones(int(size) // 4)
    seconds = []
    for i in range(int(repeats) + 2):
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(data, op=dist.ReduceOp.MAX)
        if i >= 2:
            seconds.append(time.perf_counter() - begin)
    results[size] = {"seconds": statistics.median(seconds), "fastest": min(seconds)}
if rank == "0":
    print(json.dumps(results), flush=True)
dist.destroy_process_group()
