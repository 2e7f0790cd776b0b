"""``init_process_group`` without a TCPStore.

The default rendezvous (``env://``) opens a TCPStore at rank 0, which a replacement could never join, and which dies
with rank 0. Under ``keepstep run`` it returns the agent's Store instead, and with ``KEEPSTEP_STORE=1`` (on several
nodes, their addresses) also for ranks that torchrun or srun started. ``init_method="keepstep://"`` always does.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Container, Iterator
from typing import Any

from keepstep import _node
from keepstep._errors import KeepstepError
from keepstep._session import session_or_none
from keepstep.torch.distributed import nccl
from keepstep.torch.distributed.store_nodes import SWITCH, store_nodes

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
    nodes = store_nodes(world_size)
    # Each init_process_group meets the corresponding one of the other ranks, without keys of an earlier one.
    if nodes is None:
        link = _node.link(job_name())
    else:
        link = _node.link(job_name_of_all_nodes(), ",".join(nodes.addresses), nodes.place)
    _store = NodeStore(link, str(_made))
    _made += 1
    return _store, rank, world_size


def _number(name: str, given: int) -> int:
    if given >= 0:
        return given
    text = os.environ.get(name, os.environ.get({"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_NTASKS"}[name], ""))
    if not text.isdigit():
        raise KeepstepError(f"init_process_group: {name} is not set; start the script with torchrun or srun")
    return int(text)


_JOB_VARIABLES = (
    "KEEPSTEP_JOB",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "MASTER_ADDR",
    "MASTER_PORT",
)


def job_name_of_all_nodes() -> str:
    """Of variables that are the same on all nodes. The address of the master may be localhost on its own node. torchrun
    counts a restart only on the node whose worker failed; the keys of the earlier start are gone anyway, since it began
    the new one when all workers had ended."""
    return os.environ.get("KEEPSTEP_JOB") or job_name(leave_out=("TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR"))


def job_name(leave_out: Container[str] = ()) -> str:
    """A name that only the ranks of one start of a job share."""
    parts = [os.environ.get(name, "") for name in _JOB_VARIABLES if name not in leave_out]
    if not any(parts):
        raise KeepstepError(
            "init_process_group: nothing in the environment tells this job from others; set KEEPSTEP_JOB to a name of "
            "your choice, the same on all ranks"
        )
    return "/".join(parts)
