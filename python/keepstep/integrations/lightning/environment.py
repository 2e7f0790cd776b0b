"""Lightning's picture of this process: keepstep's ranks, also before there is one; and what is done once per node."""

from __future__ import annotations

import fcntl
import socket
import sys
from pathlib import Path
from typing import Any

from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.utilities import rank_zero
from lightning.pytorch.trainer import call
from lightning.pytorch.utilities.model_helpers import is_overridden

from keepstep import KeepstepError
from keepstep._session import Session, session_or_none
from keepstep.integrations.place import Place, place


class KeepstepEnvironment(ClusterEnvironment):
    """The ranks of `session`. Its processes exist already, and keepstep connects them."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def _place(self) -> Place:
        return place(self._session)

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        raise KeepstepError("keepstep has no main address: its ranks find each other without one")

    @property
    def main_port(self) -> int:
        raise KeepstepError("keepstep has no main port: its ranks find each other without one")

    @staticmethod
    def detect() -> bool:
        return False

    def world_size(self) -> int:
        return self._place.world_size

    def set_world_size(self, size: int) -> None:
        pass

    def global_rank(self) -> int:
        return self._place.rank

    def set_global_rank(self, rank: int) -> None:
        pass

    def local_rank(self) -> int:
        return self._place.local_rank

    def node_rank(self) -> int:
        return self._place.node_rank


_rank_of_environment = rank_zero._get_rank


def _rank_if_known() -> int | None:
    session = session_or_none()
    return _rank_of_environment() if session is None else session.rank_or_none


def follow_ranks() -> None:
    """From here on Lightning does not ask the environment for the rank, where a spare would wait. Outside of ``keepstep
    run`` it does, and so it does in the zygote, which has no session, but imports this for the workers that it forks.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith("lightning.") and hasattr(module, "_get_rank"):
            module.__dict__["_get_rank"] = _rank_if_known


def prepare_data(trainer: Any, session: Session) -> None:
    """Calls ``prepare_data`` once per node, in one process; the others of the node wait until it is done."""
    for owner, hook in (
        (trainer.datamodule, call._call_lightning_datamodule_hook),
        (trainer.lightning_module, call._call_lightning_module_hook),
    ):
        if owner is None or not is_overridden("prepare_data", owner):
            continue
        if not owner.prepare_data_per_node and session.welcome.several_nodes:
            raise KeepstepError(
                f"{type(owner).__qualname__}.prepare_data_per_node is False: keepstep prepares data once per node. "
                "Leave it True; on a file system that nodes share let prepare_data see what is there already"
            )
        key = session.key(f"prepared/{socket.gethostname()}/{type(owner).__qualname__}")
        with Path(__file__).open() as lock:  # its owner's death unlocks it, and nothing is left
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not session.is_over(key):
                hook(trainer, "prepare_data")
                session.store("set", key, b"1", ends_with_generation=False)
