"""Numbers and faults as short texts, for tables and pictures."""

from __future__ import annotations

from keepstep.report.data_waits import DataWaits
from keepstep.report.recovery import Fault, Hydration, Recovery
from keepstep.report.stragglers import Straggler


def milliseconds(seconds: float | None) -> str:
    """ "12.3", or "-" if the journal does not say."""
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
    if fault.kind == "digests":
        return "all ranks"
    name = f"rank {fault.rank}" if fault.rank is not None else f"worker {fault.worker}"
    return f"{name} (pid {fault.pid})" if fault.pid is not None else name


def what_happened(recovery: Recovery) -> str:
    """ "rank 2 (pid 4711): SIGKILL", one line per fault."""
    if not recovery.faults:
        return recovery.verdict_because or "?"
    return "\n".join(f"{who(fault)}: {fault.how()}" for fault in recovery.faults)


def waited(waits: DataWaits) -> str:
    """A rank whose batches were late."""
    return (
        f"rank {waits.rank} waited {waits.seconds:.3f} s for {waits.batches} batches in {waits.steps} steps "
        f"({waits.page_faults} pages came from a disk)"
    )


def limped(straggler: Straggler) -> str:
    """ "rank 3 on node 1 (node-b) from 12.1 s to the end: 210.0 ms a step, the others 103.0 ms; 48% lost, 9.1 s"."""
    until = "the end" if straggler.until_t is None else f"{straggler.until_t:.1f} s"
    return (
        f"rank {straggler.rank} on node {straggler.node} ({straggler.host}) from {straggler.from_t:.1f} s to {until}: "
        f"computed {milliseconds(straggler.computed_s)} ms a step, the others {milliseconds(straggler.others_s)} ms; "
        f"{straggler.share:.0%} of each step lost to it, about {straggler.lost_s:.1f} s"
    )


def moved(hydration: Hydration) -> str:
    parts = [
        f"{size(count)} of rank {source}"
        for source, count in zip(hydration.sources, hydration.bytes_from, strict=False)
    ]
    origin = f": {', '.join(parts)}" if parts else ""
    return f"rank {hydration.rank} {size(hydration.bytes)}{origin}"
