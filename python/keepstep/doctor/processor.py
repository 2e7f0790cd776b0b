"""CPUs: how many, how much of their time, and their features."""

from __future__ import annotations

from keepstep.doctor.finding import Finding, fine, in_words, warning
from keepstep.doctor.system import System

# Instructions that the engine or torch uses if the CPU has them: without them everything runs, but slower.
_WANTED = {
    "avx2": "parity, token batches and torch's own kernels are several times slower",
    "aes": "encryption between nodes is many times slower",
    "pclmulqdq": "encryption between nodes is many times slower",
}
_PASS_ON = "a virtual machine must pass the CPU's features on (CPU model `host`)"


def quota(system: System) -> float | None:
    """How many CPUs' worth of time this process's control groups allow; None if there is no limit."""
    found = []
    for version, folder in system.groups("cpu"):
        if version == 2:
            words = (system.read(f"{folder}/cpu.max") or "max").split()
            if len(words) == 2 and words[0] != "max":
                found.append(int(words[0]) / int(words[1]))
        else:
            limit, period = (system.number(f"{folder}/cpu.cfs_{name}_us") for name in ("quota", "period"))
            if limit is not None and limit > 0 and period:
                found.append(limit / period)
    return min(found, default=None)


def cores(system: System, cpus: int, ranks: int) -> list[Finding]:
    """`cpus`: how many this process may use."""
    allowed = quota(system)
    if allowed is not None and allowed < min(cpus, ranks):
        return [
            warning(
                "CPUs",
                f"{in_words(cpus, 'CPU')}, but this control group may use the time of {allowed:.3g}: "
                f"{in_words(ranks, 'rank')} would stand still in turns",
                "raise the limit (docker run --cpus, Kubernetes' resources.limits.cpu), or start fewer ranks",
            )
        ]
    if ranks > cpus:
        return [
            warning(
                "CPUs",
                f"{in_words(cpus, 'CPU')} for {in_words(ranks, 'rank')}: ranks wait for each other's turns",
                "start fewer ranks here, or give this process more CPUs (taskset, docker run --cpuset-cpus)",
            )
        ]
    limit = "" if allowed is None else f", of which a control group allows the time of {allowed:.3g}"
    return [fine("CPUs", f"{in_words(cpus, 'CPU')}{limit}, for {in_words(ranks, 'rank')}")]


def features(system: System, architecture: str) -> list[Finding]:
    """`architecture`: as reported by ``uname -m``."""
    if architecture != "x86_64":
        return [
            warning("CPU features", f"this is {architecture}", "keepstep is tested on x86-64 only: expect a problem")
        ]
    has = set(system.fields("proc/cpuinfo").get("flags", "").split())
    missing = [name for name in _WANTED if name not in has]
    if missing:
        so = "; ".join(dict.fromkeys(_WANTED[name] for name in missing))
        return [warning("CPU features", f"no {', '.join(missing)}: {so}", _PASS_ON)]
    return [fine("CPU features", f"{', '.join(_WANTED)}{', avx512f' if 'avx512f' in has else ''}")]
