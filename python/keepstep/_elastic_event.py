"""Whether the world is about to change, for scripts that save and exit then; free of torch."""

from __future__ import annotations

import sys

from keepstep._session import session_or_none

_told: int | None = None  # the generation whose end this process announced


def elastic_event_detected() -> bool:
    """Whether the number of ranks is about to change. Ask once a step, on all ranks alike.

    For scripts without a recoverable function: once it is True the script saves what it needs and exits with code 0, on
    all ranks; then all are started again, in the new world, instead of the job being over. It is True on all ranks at
    the same call where a process group is initialized (one all-reduce of one number), and stays so; without a group it
    is only this node's word. Where it was never True, exiting with 0 ends the job as ever.

    In a recoverable loop: whether it changes after the step that was just committed, on all ranks; there is nothing to
    do. Outside of ``keepstep run`` it is False.
    """
    global _told
    current = session_or_none()
    if current is None:
        return False
    if current.recoverable:
        from keepstep.torch.current_run import world_changes

        return world_changes()
    generation = current.need_rank("keepstep.elastic_event_detected").generation
    detected = current.engine.pause_asked()
    if "torch.distributed" in sys.modules:
        from keepstep.torch.distributed.agreement import any_rank

        detected = any_rank(detected)
    if detected and _told != generation:
        _told = generation
        current.engine.tell_paused()
    return detected
