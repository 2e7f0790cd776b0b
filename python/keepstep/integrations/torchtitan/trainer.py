"""`recoverable`: a torchtitan trainer whose training loses no step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchtitan.config import Configurable

import keepstep
from keepstep import KeepstepError
from keepstep._session import session_or_none
from keepstep.integrations.torchtitan.build import build, require_recoverable
from keepstep.integrations.torchtitan.entry import Entry
from keepstep.torch.runtime.run import Run


def recoverable(config: Any, *, on_entry: Callable[[Run], Any] | None = None) -> Any:
    """In place of ``config.build()``: a trainer that loses no committed step under ``keepstep run``.

    It is built when this process has a rank, by `train`. Without ``keepstep run`` this is ``config.build()``.

    Args:
        on_entry: is called in every entry of the training function, when the trainer is built and before its loop
            begins: for `Run.publish`, `Run.on` and the like. Not without ``keepstep run``.

    Raises:
        KeepstepError: something cannot be recovered; says what.
    """
    if session_or_none() is None:
        return Configurable.Config.build(config)  # which `__main__` replaces in Trainer.Config
    require_recoverable(config)
    return RecoverableTrainer(config, on_entry)


class RecoverableTrainer:
    """Stands for the trainer of `config`: attributes are the trainer's, once it is built.

    Attributes:
        config: torchtitan's, of the trainer.
        trainer: torchtitan's; None before `train` built it.
    """

    def __init__(self, config: Any, on_entry: Callable[[Run], Any] | None = None) -> None:
        self.config = config
        self._on_entry = on_entry
        self.trainer: Any = None

    def train(self) -> None:
        """Trains. Each generation enters the trainer's own loop again, after the last committed step."""

        @keepstep.recoverable(rehearse=False)
        def torchtitan_train(run: Run) -> None:
            state = run.setup(lambda: build(run, self.config), sharded=True)
            self.trainer = state.trainer
            if self._on_entry is not None:
                self._on_entry(run)
            entry = Entry(run, state)
            try:
                state.trainer.train()
                entry.finish()
            finally:
                entry.leave()

        torchtitan_train()

    def close(self) -> None:
        """Of the trainer, if there is one."""
        if self.trainer is not None:
            self.trainer.close()

    def __getattr__(self, name: str) -> Any:
        trainer = self.__dict__.get("trainer")
        if trainer is None:
            raise KeepstepError(
                f"recoverable: the trainer's '{name}' is asked for before train() built it; a spare has no rank until "
                "then, and torchtitan builds with one"
            )
        return getattr(trainer, name)
