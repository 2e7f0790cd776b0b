"""The limits on processes and threads."""

from __future__ import annotations

from keepstep.doctor.finding import Finding, fine, in_words, warning
from keepstep.doctor.system import System

# Threads count too. A rank has some ten threads of torch and the engine, plus loaders and compilers.
TASKS_OF_LAUNCHER = 32
TASKS_PER_RANK = 32


def needed(ranks: int) -> int:
    return TASKS_OF_LAUNCHER + TASKS_PER_RANK * ranks


def tasks(system: System, ranks: int, user_limit: int | None, user_tasks: int) -> list[Finding]:
    """`user_limit`: RLIMIT_NPROC if it applies; `user_tasks`: this user's current tasks."""
    rooms = []
    for _, folder in system.groups("pids"):
        limit = system.number(f"{folder}/pids.max")
        if limit is not None:
            used = system.number(f"{folder}/pids.current") or 0
            where = "the control group's pids.max (docker run --pids-limit, Kubernetes' podPidsLimit)"
            rooms.append((limit - used, limit, where))
    if user_limit is not None:
        rooms.append((user_limit - user_tasks, user_limit, "the user's limit (ulimit -u)"))
    need = f"{in_words(ranks, 'rank')} with their launcher have about {needed(ranks)} processes and threads"
    if not rooms:
        return [fine("processes", f"no limit; {need}")]
    left, limit, where = min(rooms)
    if left < needed(ranks):
        return [
            warning(
                "processes",
                f"{where} is {limit}, {max(left, 0)} are left, and {need}",
                f"raise it to {limit - left + needed(ranks)} or more: forks fail at the limit",
            )
        ]
    return [fine("processes", f"{left} of {limit} left; {need}")]


def tasks_of(system: System, user: int) -> int:
    """The number of threads of all processes of a user, given by uid."""
    count = 0
    for folder in (system.root / "proc").iterdir():
        if folder.name.isdigit():
            status = system.fields(f"proc/{folder.name}/status")
            if status.get("Uid", "").split()[:1] == [str(user)]:
                count += int(status.get("Threads", "0"))
    return count
