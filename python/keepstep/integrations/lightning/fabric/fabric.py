"""Fabric as a script of keepstep has it."""

from __future__ import annotations

from typing import Any

import lightning.fabric


class Fabric(lightning.fabric.Fabric):
    """Lightning's, with ``strategy="keepstep"``, launched: the processes are there already.

    Raises:
        KeepstepError: outside of ``keepstep run``.
    """

    def __init__(self, *, strategy: Any = "keepstep", **options: Any) -> None:
        super().__init__(strategy=strategy, **options)
        self.launch()
