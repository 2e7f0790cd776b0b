"""``init_process_group`` without a TCPStore.

The default rendezvous (``env://``) opens a TCPStore at rank 0, which a replacement could never join, and which dies
with rank 0. Under ``keepstep run`` it returns the agent's Store instead, and with ``KEEPSTEP_STORE=1`` also for ranks
that torchrun or srun started. ``init_method="keepstep://"`` always does.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from keepstep import _node
from keepstep._errors import KeepstepError
from keepstep._session import session_or_none
from keepstep.torch.distributed import nccl

SWITCH = "KEEPSTEP_STORE"

_store: Any = None  # of the newest process group: torch keeps only the C++ half of a Store alive
_made = 0


def install() -> None:
    """Once per process."""
    # The package exports a function of the same name, so the module is asked for by its path.
    module = importlib.import_module("torch.distributed.rendezvous")
    handlers: dict[str, Callable[..., Iterator[Any]]] = module._rendezvous_handlers
    original = handlers["env"]
    if getattr(original, "_keepstep", False):
        return

    def from_environment(*args: Any, **kwargs: Any) -> Iterator[Any]:
        current = session_or_none()
        if current is not None:
            yield _of_generation()
        elif os.environ.get(SWITCH, "0") not in ("", "0"):
            yield _of_node(**kwargs)
        else:
            yield from original(*args, **kwargs)

    def from_keepstep(url: str, **kwargs: Any) -> Iterator[Any]:
        yield _of_generation() if session_or_none() is not None else _of_node(**kwargs)

    from_environment._keepstep = True  # type: ignore[attr-defined]
    handlers["env"] = from_environment
    handlers["keepstep"] = from_keepstep


def _of_generation() -> tuple[Any, int, int]:
    from keepstep.torch.distributed.store import GenerationStore

    global _store
    current = session_or_none()
    assert current is not None
    assignment = current.need_rank("init_process_group")
    nccl.before_group(current, assignment.world_size)
    _store = GenerationStore(current)
    return _store, assignment.rank, assignment.world_size


def _of_node(rank: int = -1, world_size: int = -1, **_: Any) -> tuple[Any, int, int]:
    global _store, _made
    from keepstep.torch.distributed.store import NodeStore

    rank = _number("RANK", rank)
    world_size = _number("WORLD_SIZE", world_size)
    local = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("SLURM_NTASKS_PER_NODE")
    if local is not None and local.isdigit() and int(local) < world_size:
        raise KeepstepError(
            f"{SWITCH}: {local} of {world_size} ranks run on this node; without `keepstep run` the rootless Store "
            f"works within one node. Unset {SWITCH} for this job"
        )
    # Each init_process_group meets the corresponding one of the other ranks, without keys of an earlier one.
    _store = NodeStore(_node.link(job_name()), str(_made))
    _made += 1
    return _store, rank, world_size


def _number(name: str, given: int) -> int:
    if given >= 0:
        return given
    text = os.environ.get(name, os.environ.get({"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_NTASKS"}[name], ""))
    if not text.isdigit():
        raise KeepstepError(f"init_process_group: {name} is not set; start the script with torchrun or srun")
    return int(text)


def job_name() -> str:
    """A name that only the ranks of one start of a job share."""
    given = os.environ
    parts = [
        given.get("KEEPSTEP_JOB", ""),
        given.get("TORCHELASTIC_RUN_ID", ""),
        given.get("TORCHELASTIC_RESTART_COUNT", ""),
        given.get("SLURM_JOB_ID", ""),
        given.get("SLURM_STEP_ID", ""),
        given.get("MASTER_ADDR", ""),
        given.get("MASTER_PORT", ""),
    ]
    if not any(parts):
        raise KeepstepError(
            "init_process_group: nothing in the environment tells this job from others; set KEEPSTEP_JOB to a name of "
            "your choice, the same on all ranks"
        )
    return "/".join(parts)
