"""A script that knows nothing of keepstep: NCCL over whatever Store it is given."""

import json
import os
import sys

import torch
import torch.distributed as dist

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
torch.cuda.set_device(device)
dist.init_process_group(sys.argv[2])
rank, world = dist.get_rank(), dist.get_world_size()
value = torch.full((1000,), float(rank + 1), device=device)
dist.all_reduce(value)
pair = dist.new_group(list(range(world)))
again = torch.full((1000,), float(rank + 1), device=device)
dist.all_reduce(again, group=pair)
store = dist.distributed_c10d._get_default_store()
while isinstance(store, dist.PrefixStore):
    store = store.underlying_store
note = {"rank": rank, "sums": [value.unique().tolist(), again.unique().tolist()], "store": type(store).__name__}
with open(os.path.join(sys.argv[1], f"{os.getpid()}.jsonl"), "w") as out:
    print(json.dumps(note), file=out)
dist.destroy_process_group()
