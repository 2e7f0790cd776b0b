"""The compared job as an elastic job under torchrun: it saves through DCP when told to stop, and resumes from that.

torchrun sends SIGTERM to the workers when an agent joins, and when their own agent leaves. At the end of that step all
ranks save and exit, so no step is lost: the fastest way without keeping processes.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gpt_setup
from commit_log import CommitLog
from model import next_byte_loss
from torchrun_gpt import load, save

# Not 0: an agent whose workers all exit with 0 takes the job for finished.
SAVED = 75


def main() -> None:
    told = []
    signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    options = gpt_setup.parser()
    options.add_argument("--checkpoints", type=Path, required=True)
    chosen = options.parse_args()
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    trained = gpt_setup.build(chosen.seed, chosen.layers, chosen.width)
    done = load(chosen.checkpoints, trained)
    replica = DistributedDataParallel(trained.model)
    samples = gpt_setup.text()
    commits = CommitLog(chosen.commits)
    for step in range(done + 1, chosen.until + 1):
        tokens, targets = gpt_setup.batch(samples, step, chosen.global_batch, rank, ranks)
        trained.optimizer.zero_grad(set_to_none=True)
        next_byte_loss(replica(tokens), targets).backward()
        trained.optimizer.step()
        trained.schedule.step()
        commits.write(step, rank, done + 1, ranks)
        stops = torch.tensor(len(told))
        dist.all_reduce(stops)
        if stops:
            save(chosen.checkpoints, step, trained)
            # A rank that exits earlier would break connections that the others still use.
            dist.barrier()
            sys.exit(SAVED)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
