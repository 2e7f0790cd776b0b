"""What a launcher holds while its job runs, and whether it holds ever more. README.md says how it is judged."""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

EVERY_S = 1.0
MOST_BYTES = 4 << 20
MOST_DESCRIPTORS = 3


@dataclass
class Samples:
    """Of one process: (bytes, descriptors), oldest first."""

    taken: list = field(default_factory=list)
    _next: float = 0.0

    def look(self, pid):
        """Once a second; other calls do nothing."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY_S
        try:
            self.taken.append((resident_bytes(pid), len(os.listdir(f"/proc/{pid}/fd"))))
        except OSError:
            pass  # it is ending

    def growth(self):
        """(bytes, descriptors) by which the last third's least exceeds the second third's; None: too short a job."""
        third = len(self.taken) // 3
        if third < 3:
            return None
        middle, last = self.taken[third : 2 * third], self.taken[2 * third :]
        return tuple(min(each[i] for each in last) - min(each[i] for each in middle) for i in (0, 1))

    def leak(self):
        """What leaks, in words; None: nothing."""
        growth = self.growth()
        if growth is None:
            return None
        if growth[0] > MOST_BYTES:
            return f"the launcher's memory grew by {growth[0] / 2**20:.1f} MiB in the last third of the job"
        if growth[1] > MOST_DESCRIPTORS:
            return f"the launcher has {growth[1]} file descriptors more in the last third of the job"
        return None


def resident_bytes(pid):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise ProcessLookupError(pid)


def shared_memory():
    return {name for name in os.listdir("/dev/shm") if "keepstep" in name}
