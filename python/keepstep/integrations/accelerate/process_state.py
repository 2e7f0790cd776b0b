"""Accelerate's picture of this process (``PartialState``) follows keepstep's ranks.

Accelerate asks for rank and process group as soon as an ``Accelerator`` or ``TrainingArguments`` is made (`place`).
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from accelerate.state import AcceleratorState, DistributedType, GradientState, PartialState

from keepstep._session import Session, session_or_none
from keepstep.integrations.place import place
from keepstep.torch.runtime.run import Run


def follow_ranks() -> None:
    """From here on. Outside of ``keepstep run`` all is as before, and so it is in the zygote, which has no session, but
    imports this for the workers that it forks."""
    if hasattr(PartialState.__init__, "_keepstep"):
        return
    PartialState.__init__ = _known_to_keepstep(PartialState.__init__)
    PartialState.wait_for_everyone = _once_there_are_peers(PartialState.wait_for_everyone)


def enter(run: Run) -> None:
    """An entry of a training function begins: this process has a rank, perhaps another one than before."""
    now = _place(run._session)
    for state in (PartialState._shared_state, AcceleratorState._shared_state):
        if state:
            state.update(now)
    gradients = GradientState()
    gradients.dataloader_references = [None]  # of loops that a fault interrupted
    gradients._set_sync_gradients(True)


def _place(session: Session) -> dict[str, Any]:
    now = place(session)
    return {
        "num_processes": now.world_size,
        "process_index": now.rank,
        "local_process_index": now.local_rank,
    }


def _known_to_keepstep(original: Any) -> Any:
    @functools.wraps(original)
    def init(self: PartialState, cpu: bool = False, **kwargs: Any) -> None:
        session = session_or_none()
        if session is None or PartialState._shared_state:
            original(self, cpu, **kwargs)
            return
        on_gpu = torch.cuda.is_available() and not cpu
        if on_gpu or not session.welcome.spare:
            session.need_rank("Accelerate")  # models go to the rank's GPU when they are made
        self.__dict__ = PartialState._shared_state
        self._cpu = cpu
        self.backend = "nccl" if on_gpu else "keepstep"
        self.debug = False
        self.distributed_type = DistributedType.MULTI_GPU if on_gpu else DistributedType.MULTI_CPU
        self.fork_launched = False
        self.__dict__.update(_place(session))
        self.device = None
        self.set_device()

    init._keepstep = True  # type: ignore[attr-defined]
    return init


def _once_there_are_peers(original: Any) -> Any:
    @functools.wraps(original)
    def wait_for_everyone(self: PartialState) -> None:
        if session_or_none() is None or torch.distributed.is_initialized():
            original(self)

    return wait_for_everyone
