"""Where checkpoints are saved, how often, and how many are kept."""

from __future__ import annotations

import os
from dataclasses import dataclass

from keepstep._errors import KeepstepError


@dataclass(frozen=True, init=False)
class Destination:
    """Where ``run.checkpoint`` saves: ``keepstep.Destination("s3://bucket/run", every_steps=1000, keep_last=30)``.

    Attributes:
        url: a folder, ``file:///folder`` or ``s3://bucket/prefix`` that only this job uses.
        every_steps: save after each step that is a multiple of this number. A checkpoint that is due while the
            previous one is still being written is skipped. After two skipped or one failed, the newest state is saved
            as soon as possible.
        keep_last: how many of the newest complete checkpoints to keep; None: all.
        max_age_s: also remove checkpoints older than this, but never the newest complete one or a pinned one; None: no
            limit.
    """

    url: str
    every_steps: int
    keep_last: int | None
    max_age_s: float | None

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        every_steps: int = 100,
        keep_last: int | None = 3,
        max_age_s: float | None = None,
    ) -> None:
        what = f"keepstep.Destination({url!r}"
        if not isinstance(url, (str, os.PathLike)) or not os.fspath(url):
            raise KeepstepError(f"{what}): a folder, or s3://bucket/prefix, is needed")
        if type(every_steps) is not int or every_steps < 1:
            raise KeepstepError(f"{what}, every_steps={every_steps!r}): a number of steps from 1 on is needed")
        if keep_last is not None and (type(keep_last) is not int or keep_last < 1):
            raise KeepstepError(f"{what}, keep_last={keep_last!r}): at least 1 is needed, or None to keep all")
        if max_age_s is not None and not (isinstance(max_age_s, (int, float)) and max_age_s > 0):
            raise KeepstepError(f"{what}, max_age_s={max_age_s!r}): seconds above 0 are needed, or None for any age")
        values = {"url": os.fspath(url), "every_steps": every_steps, "keep_last": keep_last, "max_age_s": max_age_s}
        for name, value in values.items():
            object.__setattr__(self, name, value)
