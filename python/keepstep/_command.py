"""How a command of keepstep that is written in Python begins and ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import NoReturn


def exit_with(main: Callable[[list[str]], int]) -> NoReturn:
    """Ends this process with what `main` makes of its arguments.

    Whoever reads our output may stop before its end (`| head`): that is no error of ours to print, but 1.
    """
    try:
        sys.exit(main(sys.argv[1:]))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more as it ends
        sys.exit(1)
