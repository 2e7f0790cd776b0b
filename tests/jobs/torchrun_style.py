"""An unchanged torchrun script: reads RANK, uses gloo, checkpoints to a file, knows nothing of keepstep."""

import json
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

folder, until, kill_at = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 8))
checkpoint = os.path.join(folder, "checkpoint.pt")
first = 0
if os.path.exists(checkpoint):
    state = torch.load(checkpoint)
    model.module.load_state_dict(state["model"])
    first = state["step"]
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(first, until):
    optimizer.zero_grad()
    model(torch.full((2, 8), float(step + rank))).square().mean().backward()
    optimizer.step()
    dist.barrier()
    if rank == 0:
        torch.save({"model": model.module.state_dict(), "step": step + 1}, checkpoint + ".new")
        os.replace(checkpoint + ".new", checkpoint)
    dist.barrier()
    restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if kill_at == step and rank == 1 and restarts == 0:
        os.kill(os.getpid(), signal.SIGKILL)
with open(os.path.join(folder, f"rank{rank}.jsonl"), "w") as out:
    out.write(
        json.dumps(
            {
                "done": step + 1,
                "rank": rank,
                "local": int(os.environ["LOCAL_RANK"]),
                "world": int(os.environ["WORLD_SIZE"]),
                "first": first,
                "restarts": restarts,
            }
        )
        + "\n"
    )
dist.destroy_process_group()
