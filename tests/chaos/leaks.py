"""What a launcher holds while its job runs, and whether it holds ever more. README.md says how it is judged."""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

EVERY_S = 0.1  # a job of a few seconds is quiet between two recoveries only for a moment
MAX_BYTES = 4 << 20
MAX_DESCRIPTORS = 3


@dataclass
class Samples:
    """Of one process: (bytes, descriptors, processes of its session), oldest first."""

    taken: list = field(default_factory=list)
    _next: float = 0.0

    def look(self, pid):
        """Every EVERY_S; other calls do nothing."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY_S
        try:
            self.taken.append((resident_bytes(pid), len(os.listdir(f"/proc/{pid}/fd")), processes_of_session(pid)))
        except OSError:
            pass  # it is ending

    def growth(self):
        """(bytes, descriptors) by which the last third's least exceeds the second third's; None: too short a job.

        A launcher holds some descriptors for each of its processes, so only looks at equally many are compared.
        """
        third = len(self.taken) // 3
        if third < 3:
            return None
        middle, last = self.taken[third : 2 * third], self.taken[2 * third :]
        memory = min(each[0] for each in last) - min(each[0] for each in middle)
        before, after = fewest_descriptors(middle), fewest_descriptors(last)
        return memory, min((after[number] - before[number] for number in before.keys() & after.keys()), default=0)

    def leak(self):
        """What leaks, in words; None: nothing."""
        growth = self.growth()
        if growth is None:
            return None
        if growth[0] > MAX_BYTES:
            return f"the launcher's memory grew by {growth[0] / 2**20:.1f} MiB in the last third of the job"
        if growth[1] > MAX_DESCRIPTORS:
            return f"the launcher has {growth[1]} file descriptors more in the last third of the job"
        return None


def fewest_descriptors(samples):
    """By the number of processes."""
    fewest = {}
    for _, descriptors, processes in samples:
        fewest[processes] = min(descriptors, fewest.get(processes, descriptors))
    return fewest


def processes_of_session(leader):
    def session(pid):
        try:
            return os.getsid(pid)
        except OSError:
            return None  # it ended just now

    return sum(session(int(pid)) == leader for pid in os.listdir("/proc") if pid.isdigit())


def resident_bytes(pid):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise ProcessLookupError(pid)


def shared_memory():
    return {name for name in os.listdir("/dev/shm") if "keepstep" in name}
