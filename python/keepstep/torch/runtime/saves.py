"""What ``run.checkpoint`` asked for: the saves of one process, and whether all ranks asked for the same."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from keepstep._destination import Destination
from keepstep._errors import KeepstepError
from keepstep.torch.checkpoint import settings

if TYPE_CHECKING:
    from keepstep.torch.checkpoint.manager import CheckpointManager
    from keepstep.torch.runtime.run import Run


class Saves:
    """Of one process. For the main thread. `manager`: None where ``run.checkpoint`` was not called."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._session = run._session
        self._settings: settings.Settings = {}  # empty: not called
        self.manager: CheckpointManager | None = None

    def begin(self, destinations: tuple[Destination | str | os.PathLike[str], ...], memory_every: int | None) -> None:
        """``run.checkpoint`` was called."""
        run = self._run
        settings.check_memory_every_steps(memory_every, elastic=self._session.welcome.elastic)
        checked = settings.checked(destinations)
        if self._session.witness is not None:
            checked = self._session.witness.redirected(checked)
        if run.rehearsing or self._session.passing:
            return
        if self.manager is None:
            if self._session.formed:
                raise KeepstepError("run.checkpoint comes too late: this rank trains already; call it before run.ddp")
            from keepstep.torch.checkpoint.manager import CheckpointManager

            self.manager = CheckpointManager(self._session, run._registry, checked, lambda: run._shards.wanted)
        elif self.manager.destinations != checked:
            raise KeepstepError("run.checkpoint: other arguments than in the previous entry of the training function")
        self._settings = settings.settings_of(checked, memory_every)
        if memory_every == 1:
            run._shards.of_replicas = True
        run._shards.copy_every(memory_every or 1)

    def require_same(self) -> None:
        """Raises if another rank asked for something else."""
        settings.require_same(self._session, self._run.rank, self._settings)

    def save_last(self) -> None:
        """At the end of the loop: saves what was not saved yet, and waits for it."""
        run = self._run
        if self.manager is None or run.rehearsing:
            return
        run._guards.changed("the last checkpoint found it")  # no further commit would do it
        with run.slow("the last checkpoint"):
            self.manager.save_last(run.version, run._entries.capsule_ids())

    def wait_copied(self) -> None:
        """Before protected state changes: waits for those who copy it in the background."""
        if self.manager is not None:
            self.manager.wait_copied()
        self._run._publications.wait_copied()
