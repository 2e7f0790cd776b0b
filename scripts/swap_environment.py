"""Puts a virtual environment in the place of another in one step: swap_environment.py NEW OLD.

Scripts of an environment hold its absolute path; those of NEW are made to say OLD first. OLD need not be there. If it
is, it is under NEW's name afterwards, and removed.
"""

import ctypes
import os
import shutil
import sys
from pathlib import Path

AT_FDCWD = -100
RENAME_EXCHANGE = 2


def say_path_of(place: Path, environment: Path) -> None:
    """Scripts and the configuration of `environment` are made to say that they are in `place`."""
    for path in [*(environment / "bin").iterdir(), environment / "pyvenv.cfg"]:
        if path.is_symlink() or not path.is_file():
            continue
        content = path.read_bytes()
        there = content.replace(os.fsencode(environment), os.fsencode(place))
        if there != content:
            path.write_bytes(there)


def exchange(new: Path, old: Path) -> None:
    """Both names change places at once; where the file system cannot, one after the other."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 and renameat2(AT_FDCWD, os.fsencode(new), AT_FDCWD, os.fsencode(old), RENAME_EXCHANGE) == 0:
        return
    aside = old.with_name(old.name + ".old")
    shutil.rmtree(aside, ignore_errors=True)
    old.rename(aside)
    new.rename(old)
    aside.rename(new)


def main() -> None:
    new, old = map(Path, sys.argv[1:])
    say_path_of(old, new)
    if old.is_symlink():  # an environment elsewhere is left as it is
        old.unlink()
    if old.exists():
        exchange(new, old)
        shutil.rmtree(new)
    else:
        new.rename(old)


if __name__ == "__main__":
    main()
