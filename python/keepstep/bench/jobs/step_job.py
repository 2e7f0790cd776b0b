"""The job of `keepstep bench step`: steps that sleep instead of computing, with votes that arrive spread over 5 ms.

Writes one JSON file per rank: for each measured step when this rank voted and when it learned the decision
(CLOCK_MONOTONIC nanoseconds), the CPU time of the vote and of the whole process, and the wall time spent in keepstep's
own calls, excluding waits for the others.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from typing import TYPE_CHECKING, Any

import torch

import keepstep

if TYPE_CHECKING:
    from keepstep import Run


class Nothing(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> int:
        return index


def build() -> keepstep.State:
    model = torch.nn.Linear(8, 8)
    return keepstep.State(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


@keepstep.recoverable
def train(run: Run, args: argparse.Namespace) -> None:
    run.setup(build)
    spread = random.Random(run.rank * 1000 + 17)
    rows = []
    engine = run._engine
    vote = engine.vote
    inner = {}

    class Timed:
        """The engine with the CPU time of its vote measured; other attributes are as fast as the engine's."""

        def __init__(self) -> None:
            for name in dir(engine):
                if not name.startswith("__") and name != "vote" and callable(value := getattr(engine, name)):
                    setattr(self, name, value)

        def __getattr__(self, name: str) -> Any:
            return getattr(engine, name)

        def vote(self, flags: int) -> int:
            cpu = time.thread_time_ns()
            wall = time.perf_counter_ns()
            result: int = vote(flags)
            inner["wall"] = time.perf_counter_ns() - wall
            inner["cpu"] = time.thread_time_ns() - cpu
            inner["voted"], inner["decided"] = engine.last_vote
            return result

    run._step_commits._engine = Timed()
    left = time.perf_counter_ns()
    process_cpu = time.process_time_ns()
    for step in run.steps(Nothing(), global_batch=run.world_size, micro_batch=1, last_step=args.warmup + args.steps):
        before = time.perf_counter_ns() - left
        for _ in step:
            time.sleep(args.step_ms * 1e-3 + spread.random() * args.spread_ms * 1e-3)
        entered = time.perf_counter_ns()
        step.commit(lambda: None)
        step.log(rank=run.rank)
        left = time.perf_counter_ns()
        now = time.process_time_ns()
        if step.number > args.warmup:
            rows.append(
                {
                    "step": step.number,
                    "voted_ns": inner["voted"],
                    "decided_ns": inner["decided"],
                    "vote_cpu_ns": inner["cpu"],
                    "process_cpu_ns": now - process_cpu,
                    "own_ns": before + (left - entered) - inner["wall"],
                }
            )
        process_cpu = time.process_time_ns()
    with open(os.path.join(args.out, f"rank{run.rank}.json"), "w") as out:
        json.dump(rows, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--step-ms", type=float, default=20)
    parser.add_argument("--spread-ms", type=float, default=5)
    train(parser.parse_args())
