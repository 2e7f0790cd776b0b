"""The job of `keepstep bench checkpoint` that torchrun starts: the same state and steps, saved by torch's own means.

The ways of saving take turns, with steps without any save in between. A way saves after each step, unless its previous
save is still in progress: then as soon as that is done. Each rank writes one JSON file: a row per step.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import AsyncStager, DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, AsyncSaveResponse

import checkpoint_work as work

TURN = 3  # steps of a way in a row


class TorchSave:
    """Each rank writes its own file, which is on the disk when the call returns."""

    def __init__(self, folder: Path, state: work.State) -> None:
        self._path = folder / f"rank{dist.get_rank()}.pt"
        self._state = {name: tensor for name, tensor in zip(state.tensors, state.local, strict=True)}

    def ready(self) -> bool:
        return True

    def save(self) -> None:
        with self._path.open("wb") as file:
            torch.save(self._state, file)
            file.flush()
            os.fsync(file.fileno())

    def before_update(self) -> None:
        pass

    def end(self) -> None:
        pass


class AsyncSave:
    """``dcp.async_save``. `reused`: all saves share one stager and its buffers; `background`: it copies in a thread."""

    def __init__(self, folder: Path, state: work.State, process: bool, reused: bool, background: bool) -> None:
        self._folder = folder
        self._state = state.tensors
        self._group = dist.new_group(backend="gloo")  # a save's collectives run concurrently with those of training
        self._how = AsyncCheckpointerType.PROCESS if process else AsyncCheckpointerType.THREAD
        self._stager: AsyncStager | None = None
        if reused or background:
            self._stager = DefaultStager(StagingOptions(False, process, background, False))
        self._staged: Any = None
        self._saved: Any = None

    def ready(self) -> bool:
        """The same on all ranks, because a save is a collective."""
        busy = torch.tensor([int(self._saved is not None and not self._saved.done())])
        dist.all_reduce(busy)
        return int(busy.item()) == 0

    def save(self) -> None:
        if self._saved is not None:
            self._saved.result()  # raises what went wrong
        answer = dcp.async_save(
            dict(self._state),
            checkpoint_id=self._folder,
            process_group=self._group,
            async_checkpointer_type=self._how,
            async_stager=self._stager,
        )
        if isinstance(answer, AsyncSaveResponse):
            self._staged, self._saved = answer.staging_completion, answer.upload_completion
        else:
            self._saved = answer

    def before_update(self) -> None:
        """Waits until the state has been copied and may change."""
        if self._staged is not None:
            self._staged.result()
            self._staged = None

    def end(self) -> None:
        self.before_update()
        if self._saved is not None:
            self._saved.result()
            self._saved = None


WAYS: dict[str, Callable[[Path, work.State], TorchSave | AsyncSave]] = {
    "torch_save": TorchSave,
    "thread": lambda folder, state: AsyncSave(folder, state, False, False, False),
    "thread_reused": lambda folder, state: AsyncSave(folder, state, False, True, False),
    "thread_background": lambda folder, state: AsyncSave(folder, state, False, True, True),
    "process": lambda folder, state: AsyncSave(folder, state, True, False, False),
    "process_reused": lambda folder, state: AsyncSave(folder, state, True, True, False),
    "process_background": lambda folder, state: AsyncSave(folder, state, True, True, True),
}


def main() -> None:
    parser = work.options()
    parser.add_argument("--folder", type=Path, required=True, help="for the checkpoints")
    parser.add_argument("--ways", required=True, help="with commas")
    chosen = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    state = work.State(*work.build(dist.get_world_size(), chosen.bytes))
    compute = work.Compute()
    compute.agree(chosen.step_s)
    rows: list[dict[str, Any]] = []
    ways: dict[str, TorchSave | AsyncSave] = {}
    for way in chosen.ways.split(","):
        folder = chosen.folder / way
        folder.mkdir(parents=True, exist_ok=True)
        ways[way] = WAYS[way](folder, state)

    def step(kind: str, way: TorchSave | AsyncSave | None) -> None:
        """An update, the start of its save, and the step that computes meanwhile."""
        dist.barrier()
        began, cpu_began = time.perf_counter(), work.cpu_seconds()
        state.update()
        blocked = work.Stopwatch()
        saves = 0
        if way is not None and way.ready():
            with blocked:
                way.save()
            saves = 1
        compute_s = compute.run()
        if way is not None:
            with blocked:
                way.before_update()
        rows.append(
            {
                "kind": kind,
                "step_s": time.perf_counter() - began,
                "cpu_s": work.cpu_seconds() - cpu_began,
                "compute_s": compute_s,
                "blocked_s": blocked.seconds,
                "blocked_cpu_s": blocked.cpu_seconds,
                "saves": saves,
            }
        )

    for round_ in range(chosen.rounds + 1):  # the first round is a warm-up: it allocates buffers and starts processes
        if round_ == 1:
            rows.clear()
        for name in list(ways):
            if round_ > 0:
                step("plain", None)
            for _ in range(TURN if round_ > 0 else 1):
                step(name, ways[name])
            ways[name].end()
            dist.barrier()
    found = {"steps": rows, "state_bytes": state.bytes, "tensors": len(state.local)}
    (chosen.out / f"rank{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
