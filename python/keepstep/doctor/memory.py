"""Memory other than what the engine needs: room for torch, forks of large processes, files no longer in use."""

from __future__ import annotations

import re

from keepstep.doctor.finding import Finding, fine, in_words, size, warning
from keepstep.doctor.system import System

RANK_BYTES = 200 << 20  # a rank after a step of a tiny model on CPUs: its own pages and its share of the zygote's
CONTAINER_SHM_BYTES = 64 << 20


def room(machine_available: int, ranks: int) -> list[Finding]:
    """Empty if the ranks have room for torch itself."""
    if machine_available >= ranks * RANK_BYTES:
        return []
    return [
        warning(
            "memory",
            f"{size(machine_available)} available, and {in_words(ranks, 'rank')} with torch take about "
            f"{size(ranks * RANK_BYTES)} before any model",
            "free memory, raise the container's limit (docker run --memory), or start fewer ranks",
        )
    ]


def forks(system: System) -> list[Finding]:
    """Ranks are forked from a process with torch, and loaders from ranks; each fork commits all memory again."""
    swap = system.fields("proc/meminfo").get("SwapTotal", "0 kB").split()[0]
    swap_text = "no swap" if swap == "0" else f"{size(int(swap) * 1024)} of swap"
    if system.number("proc/sys/vm/overcommit_memory") != 2:
        return [fine("overcommit", f"processes can fork, however large they are; {swap_text}")]
    meminfo = system.fields("proc/meminfo")
    limit, used = (int(meminfo.get(key, "0 kB").split()[0]) * 1024 for key in ("CommitLimit", "Committed_AS"))
    return [
        warning(
            "overcommit",
            f"vm.overcommit_memory is 2 and {size(max(0, limit - used))} may still be promised: forks of large "
            "processes (ranks, DataLoader workers) fail beyond that",
            "sysctl vm.overcommit_memory=0",
        )
    ]


def small_dev_shm(total_bytes: int) -> list[Finding]:
    """Empty if /dev/shm is larger than the default of container runtimes."""
    if total_bytes > CONTAINER_SHM_BYTES:
        return []
    return [
        warning(
            "/dev/shm",
            f"it has {size(total_bytes)}, a container's default: DataLoader workers of torch pass their batches "
            "through it (keepstep itself does not use it)",
            "docker run --shm-size=1g; in Kubernetes an emptyDir with medium: Memory at /dev/shm",
        )
    ]


def leftovers(system: System) -> list[Finding]:
    """Files in /dev/shm of killed DataLoader workers; empty if there are none."""
    left: dict[str, int] = {}
    for path in (system.root / "dev/shm").glob("torch_*"):
        owner = re.match(r"torch_(\d+)_", path.name)
        if owner is not None and not (system.root / "proc" / owner[1]).exists():
            left[owner[1]] = left.get(owner[1], 0) + path.stat().st_size
    if not left:
        return []
    return [
        warning(
            "/dev/shm",
            f"{size(sum(left.values()))} in files of torch whose processes ({', '.join(sorted(left, key=int)[:5])}"
            f"{', ...' if len(left) > 5 else ''}) are not there any more",
            "unless another container shares this /dev/shm: "
            + "; ".join(f"rm /dev/shm/torch_{pid}_*" for pid in sorted(left, key=int)[:5]),
        )
    ]
