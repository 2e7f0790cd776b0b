"""A file of lines that other processes append to, read as it grows."""

from __future__ import annotations

from pathlib import Path


class AppendedLines:
    """Returns each line once. A missing file counts as empty; an incomplete line waits for its rest."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read_bytes = 0

    def poll(self) -> list[bytes]:
        """The new lines."""
        try:
            if self.path.stat().st_size == self._read_bytes:
                return []
            with self.path.open("rb") as file:
                file.seek(self._read_bytes)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        return whole.split(b"\n")[:-1]
