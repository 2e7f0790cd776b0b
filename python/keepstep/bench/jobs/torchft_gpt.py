"""The compared job under torchft: each process is a replica group of one rank (without a torchrun).

With ``--lighthouse-here`` this is the lighthouse instead: it prints its address and serves until it is ended. Tuning:
see bench/recovery/torchft_job.py.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torchft.coordination import LighthouseServer  # type: ignore[import-not-found, unused-ignore]
from torchft.ddp import DistributedDataParallel  # type: ignore[import-not-found, unused-ignore]
from torchft.manager import Manager  # type: ignore[import-not-found, unused-ignore]
from torchft.process_group import ProcessGroupGloo  # type: ignore[import-not-found, unused-ignore]

import gpt_setup
from commit_log import CommitLog
from model import next_byte_loss


def serve(chosen: argparse.Namespace) -> None:
    lighthouse = LighthouseServer(
        bind="127.0.0.1:0",
        min_replicas=2,
        join_timeout_ms=round(chosen.join_s * 1000),
        quorum_tick_ms=100,
        heartbeat_timeout_ms=round(chosen.heartbeat_s * 1000),
    )
    # Its address() contains the host name, which needs a name server.
    print(f"http://127.0.0.1:{lighthouse.address().rsplit(':', 1)[1]}", flush=True)
    signal.sigwait([signal.SIGTERM, signal.SIGINT])
    lighthouse.shutdown()


def train(chosen: argparse.Namespace) -> None:
    trained = gpt_setup.build(chosen.seed)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def state() -> dict[str, Any]:
        return {name: part.state_dict() for name, part in trained._asdict().items()}

    def load(values: dict[str, Any]) -> None:
        trained.model.load_state_dict(values["model"])
        trained.optimizer.load_state_dict(values["optimizer"])
        trained.schedule.load_state_dict(values["schedule"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=chosen.gloo_s)),
        load_state_dict=load,
        state_dict=state,
        min_replica_size=2,
        timeout=timedelta(seconds=chosen.manager_s),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=chosen.lighthouse,
        replica_id=f"replica_{chosen.replica}",
        hostname="127.0.0.1",
        init_sync=False,
    )
    replica = DistributedDataParallel(manager, trained.model)
    samples = gpt_setup.text()
    commits = CommitLog(chosen.commits)
    while manager.current_step() < chosen.until:
        step = manager.current_step() + 1
        tokens, targets = gpt_setup.batch(samples, step, chosen.global_batch, chosen.replica, chosen.replicas)
        manager.start_quorum()
        trained.optimizer.zero_grad(set_to_none=True)
        next_byte_loss(replica(tokens), targets).backward()
        if manager.should_commit():
            trained.optimizer.step()
            trained.schedule.step()
            commits.write(manager.current_step(), chosen.replica, os.getpid(), manager.num_participants())
    manager.shutdown()


if __name__ == "__main__":
    parser = argparse.ArgumentParser() if "--lighthouse-here" in sys.argv else gpt_setup.parser()
    parser.add_argument("--lighthouse-here", action="store_true")
    parser.add_argument("--lighthouse")
    parser.add_argument("--replica", type=int)
    parser.add_argument("--replicas", type=int)
    for name in ("heartbeat", "join", "gloo", "manager"):
        parser.add_argument(f"--{name}-s", type=float, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    serve(options) if options.lighthouse_here else train(options)
