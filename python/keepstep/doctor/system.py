"""Files of the kernel, including this process's control groups, below a folder that tests can replace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


class System:
    """The kernel's view of this machine. `root` is ``/``, or a test's copy of the files that matter."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root

    def read(self, name: str) -> str | None:
        """The text of ``/NAME`` without surrounding white space; None if it cannot be read."""
        try:
            return (self.root / name).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None

    def number(self, name: str) -> int | None:
        """The number in a file; also None for ``max``, with which the kernel means that there is no limit."""
        text = self.read(name)
        return int(text) if text is not None and text.removeprefix("-").isdigit() else None

    def fields(self, name: str) -> dict[str, str]:
        """``key: value`` lines, such as those of ``proc/meminfo``."""
        lines = (line.partition(":") for line in (self.read(name) or "").splitlines())
        return {key.strip(): value.strip() for key, _, value in lines}

    def groups(self, controller: str) -> Iterator[tuple[int, str]]:
        """The control groups that bound this process, its own first: version (1 or 2) and folder."""
        for line in (self.read("proc/self/cgroup") or "").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                yield from ((2, folder) for folder in self._upwards("sys/fs/cgroup", path))
            elif controller in controllers.split(","):
                yield from ((1, folder) for folder in self._upwards(f"sys/fs/cgroup/{controller}", path))

    @staticmethod
    def _upwards(mount: str, path: str) -> Iterator[str]:
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for count in range(len(parts), -1, -1):
            yield "/".join([mount, *parts[:count]])
