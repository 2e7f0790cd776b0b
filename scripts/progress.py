"""What apt-get, pip or ninja write on a pipe, as a few lines: `... | progress.py apt|pip|ninja`.

Of steps that are counted it shows one line for each tenth. Of ninja it passes all other lines, whole: those are
messages of the compiler. apt-get and pip write their errors to standard error.
"""

from __future__ import annotations

import re
import sys


class Tenths:
    """Whether a step is the first one of another tenth, or of another number of steps. Step 0 is none."""

    def __init__(self) -> None:
        self._shown = (0, 0)

    def begins(self, done: int, all_steps: int) -> bool:
        tenth = (all_steps, 10 * done // max(1, all_steps))
        another = done > 0 and tenth != self._shown
        if another:
            self._shown = tenth
        return another


class Apt:
    def __init__(self) -> None:
        self._tenths = Tenths()
        self._packages = 0
        self._done = 0

    def told(self, line: str) -> str | None:
        if line.startswith("Need to get"):
            return f"apt: {line}"
        if found := re.search(r"(\d+) newly installed", line):
            self._packages = int(found[1])
        if found := re.match(r"Setting up (\S+)", line):
            self._done += 1
            if self._tenths.begins(self._done, self._packages):
                return f"apt: [{self._done}/{self._packages}] {found[1]}"
        return None


class Pip:
    def told(self, line: str) -> str | None:
        """Files of a megabyte and more, and that it unpacks them now."""
        if found := re.match(r"\s*(Downloading|Using cached) (?:\S*/)?(\S+) \((\S+ [MG]B)\)", line):
            return f"pip: {found[1].lower()} {found[2]} ({found[3]})"
        if line.startswith("Installing collected packages"):
            return f"pip: unpacking {line.count(',') + 1} packages"
        return None


class Ninja:
    def __init__(self) -> None:
        self._tenths = Tenths()

    def told(self, line: str) -> str | None:
        step = re.match(r"\[(\d+)/(\d+)", line)
        return None if step and not self._tenths.begins(int(step[1]), int(step[2])) else line


def main() -> None:
    tool = {"apt": Apt, "pip": Pip, "ninja": Ninja}[sys.argv[1]]()
    for line in sys.stdin:
        told = tool.told(line.rstrip("\n"))
        if told is not None:
            print(told, flush=True)


if __name__ == "__main__":
    main()
