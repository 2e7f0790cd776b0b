"""A torchrun script that computes for a while, and has no checkpoint: every start is from the beginning."""

import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.zeros(1000)
for step in range(int(sys.argv[1])):
    part = torch.full((1000,), float(step + dist.get_rank()))
    dist.all_reduce(part)
    total += part
if dist.get_rank() == 0:
    print(f"the sum is {total.sum().item()}", flush=True)
dist.destroy_process_group()
