"""How a keepstep command written in Python starts and ends, and how it finds the `keepstep` binary."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from keepstep._errors import KeepstepError
from keepstep._terminal import visible_stream


def keepstep_command() -> str:
    """The path of `keepstep`: $KEEPSTEP_COMMAND, next to the interpreter, in PATH, or in the checkout's build/."""
    named = os.environ.get("KEEPSTEP_COMMAND")
    candidates = [named] if named else [str(Path(sys.executable).parent / "keepstep"), "keepstep"]
    if not named:
        candidates.append(str(Path(__file__).resolve().parents[2] / "build" / "keepstep"))
    for candidate in candidates:
        found = shutil.which(candidate)
        if found is not None:
            return found
    raise KeepstepError(
        f"no command keepstep (looked for {', '.join(candidates)}); put the folder that pip installed it into in PATH, "
        "or set KEEPSTEP_COMMAND to it; in a checkout, run `make build`"
    )


def exit_with(main: Callable[[list[str]], int]) -> NoReturn:
    """Ends this process with the exit code that `main` returns for its arguments.

    Control characters in the output are escaped, because much of it comes from jobs and from storage.

    If the reader of our output stops early (`| head`), nothing is printed, and the exit code is 1.
    """
    sys.stdout, sys.stderr = visible_stream(sys.stdout), visible_stream(sys.stderr)
    try:
        try:
            sys.exit(main(sys.argv[1:]))
        finally:
            sys.stdout.flush()  # raises here if the reader is gone; at Python's exit the error would be printed
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at exit
        sys.exit(1)
