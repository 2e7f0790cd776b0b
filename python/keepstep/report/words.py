"""Numbers and faults as short texts, shared by the tables and the pictures."""

from __future__ import annotations

from keepstep.report.recovery import Fault, Hydration, Recovery


def milliseconds(seconds: float | None) -> str:
    """ "12.3", or "-" where the journal does not say."""
    if seconds is None:
        return "-"
    value = seconds * 1000
    return f"{value:.1f}" if value < 1000 else f"{value:,.0f}"


def size(count: int) -> str:
    """Bytes, as "512 B" or "43.7 MiB"."""
    if count < 1024:
        return f"{count} B"
    scaled = count / 1024
    for unit in ("KiB", "MiB"):
        if scaled < 1024:
            return f"{scaled:.1f} {unit}"
        scaled /= 1024
    return f"{scaled:.1f} GiB"


def who(fault: Fault) -> str:
    if fault.node is not None:
        ranks = ", ".join(map(str, fault.ranks))
        return (
            f"node {fault.node} (rank{'s' if len(fault.ranks) > 1 else ''} {ranks})" if ranks else f"node {fault.node}"
        )
    name = f"rank {fault.rank}" if fault.rank is not None else f"worker {fault.worker}"
    return f"{name} (pid {fault.pid})" if fault.pid is not None else name


def what_happened(recovery: Recovery) -> str:
    """ "rank 2 (pid 4711): SIGKILL", a line for each fault."""
    if not recovery.faults:
        return recovery.verdict_because or "?"
    return "\n".join(f"{who(fault)}: {fault.how()}" for fault in recovery.faults)


def moved(hydration: Hydration) -> str:
    parts = [
        f"{size(count)} of rank {source}"
        for source, count in zip(hydration.sources, hydration.bytes_from, strict=False)
    ]
    origin = f": {', '.join(parts)}" if parts else ""
    return f"rank {hydration.rank} {size(hydration.bytes)}{origin}"
