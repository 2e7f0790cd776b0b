"""Which releases of torch keepstep runs with."""

from __future__ import annotations

import re

from keepstep._errors import KeepstepError

OLDEST = (2, 11)


def check(version: str) -> None:
    """Raises KeepstepError if `version` (``torch.__version__``) is too old.

    The lower bound is the oldest release that `make test-all` runs all tests with: a backend in Python leans on parts
    of torch that change from one release to the next.
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise KeepstepError(
            f"torch {version} is too old for keepstep: it needs torch {oldest} or newer, the oldest release its tests "
            f"run with. Install one: pip install 'torch>={oldest}'"
        )
