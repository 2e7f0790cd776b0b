"""Whether the world is about to change, for scripts that then save and exit. Free of torch."""

from __future__ import annotations

import sys

from keepstep._session import session_or_none

_told: int | None = None  # the generation whose end this process has announced


def elastic_event_detected() -> bool:
    """Whether the number of ranks is about to change. Call it once per step, on all ranks.

    For scripts without a recoverable function. Once it is True, the script saves what it needs and exits with code 0 on
    all ranks; then all ranks are started again in the new world, and the job continues. If a process group is
    initialized, it turns True on all ranks at the same call (one all-reduce of one number) and stays True; without a
    group it covers only this node. If it was never True, exiting with 0 ends the job as usual.

    In a recoverable loop it returns, on all ranks, whether the world changes after the step that was just committed;
    the script need not do anything. Outside ``keepstep run`` it is False.
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
