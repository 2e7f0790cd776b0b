"""The job of `keepstep bench checkpoint` that keepstep protects: steps with and without its copies in turns.

Among them are steps with a concurrent memcpy of the state, and with as many bytes through loopback TCP, for comparison
with the copies. Each rank writes one JSON file: a row per step, and the memory that its node holds for copies.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import checkpoint_work as work
import keepstep

if TYPE_CHECKING:
    from keepstep import Run

WARM_UP = 4  # steps; the first three check digests, and the first determines how much a step computes
# Runs of odd length, so both slots of a vault take turns, and no copy is measured alone.
ROUND = ("plain", "plain", "copies", "copies", "copies", "plain", "memcpy", "loopback")


class Numbers(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1 << 10

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


class Turns:
    """Sits between the run and its copies: lets them happen in their turns, and measures their time.

    A step's row covers the time from the end of one wait to the end of the next: the previous update, the copy that
    starts after it, and the step that computes during the copy.
    """

    def __init__(self, run: Run, of_step: list[str], state: work.State) -> None:
        self._run = run
        self._begin, self._wait = run._shards.protect, run._shards.wait
        self._of_step = of_step
        self._state = state
        self._loopback = work.Loopback()
        self._under_way: int | None = 0  # the generation began with a copy of version 0
        self._beside: work.Beside | None = None
        self._blocked_s = self._blocked_cpu_s = 0.0
        self._mark = self._now()
        self.compute_s = 0.0  # of the current step
        self.rows: list[dict[str, Any]] = []
        run._shards.protect, run._shards.wait = self.protect, self.wait  # type: ignore[method-assign]

    def _now(self) -> tuple[float, float, int]:
        return time.perf_counter(), work.cpu_seconds(), self._run.shard_counts().waits

    def _timed(self, work: Callable[[int], None], version: int) -> None:
        began, cpu_began = time.perf_counter(), time.thread_time()
        work(version)
        self._blocked_s += time.perf_counter() - began
        self._blocked_cpu_s += time.thread_time() - cpu_began

    def protect(self, version: int) -> None:
        kind = self._of_step[version] if version < len(self._of_step) else "plain"  # of step version + 1
        if kind == "memcpy":
            self._beside = work.Beside(self._state.copy_aside)
        elif kind == "loopback":
            self._beside = work.Beside(lambda: self._loopback.carry(self._state.bytes))
        elif kind == "copies":
            self._timed(self._begin, version)
            self._under_way = version

    def wait(self, version: int) -> None:
        beside_s = 0.0
        if self._beside is not None:
            beside_s = self._beside.join()
            self._beside = None
        if self._under_way == version:
            self._timed(self._wait, version)
            self._under_way = None
        last, self._mark = self._mark, self._now()
        counts = self._run.shard_counts()
        self.rows.append(
            {
                "kind": self._of_step[version],
                "step_s": self._mark[0] - last[0],
                "cpu_s": self._mark[1] - last[1],
                "waits": self._mark[2] - last[2],
                "compute_s": self.compute_s,
                "blocked_s": self._blocked_s,
                "blocked_cpu_s": self._blocked_cpu_s,
                "beside_s": beside_s,
                "copied_s": counts.copied_ns / 1e9,
                "given_s": counts.given_ns / 1e9,
            }
        )
        self._blocked_s = self._blocked_cpu_s = 0.0


def vault_bytes() -> dict[str, int]:
    """Memory for copies that this process has mapped: bytes by inode number."""
    found: dict[str, int] = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        match = re.match(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ (\d+) +/memfd:keepstep-shard", line)
        if match:
            found[match[3]] = found.get(match[3], 0) + int(match[2], 16) - int(match[1], 16)
    return found


@keepstep.recoverable
def train(run: Run, chosen: argparse.Namespace) -> None:
    def build() -> keepstep.State:
        model, optimizer = work.build(run.world_size, chosen.bytes)
        return keepstep.State(model=model, optimizer=optimizer)

    built = run.setup(build, sharded=True)
    state = work.State(built.model, built.optimizer)
    state.prepare_aside()
    compute = work.Compute()
    of_step = [*["copies"] * WARM_UP, *list(ROUND) * chosen.rounds]
    turns: Turns | None = None
    for step in run.steps(Numbers(), global_batch=run.world_size, micro_batch=1, last_step=len(of_step)):
        turns = turns or Turns(run, of_step, state)
        for _ in step:
            if step.number == 1:
                compute.agree(chosen.step_s)
            turns.compute_s = compute.run()
        step.commit(state.update)
    assert turns is not None
    found = {
        "steps": turns.rows[WARM_UP:],
        "state_bytes": state.bytes,
        "tensors": len(state.local),
        "vaults": vault_bytes(),
    }
    (chosen.out / f"rank{run.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    train(work.options().parse_args())
