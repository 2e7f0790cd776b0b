"""The files of loggers: in one job all processes that are rank 0, one after another, write to the same."""

from __future__ import annotations

import csv
import itertools
import json
from pathlib import Path
from typing import Any

from lightning.fabric.loggers.csv_logs import CSVLogger, _ExperimentWriter  # those of the Trainer are subclasses
from lightning.fabric.loggers.tensorboard import TensorBoardLogger
from lightning.pytorch.loggers.utilities import _log_hyperparams

from keepstep._session import Session, session_or_none

_WITH_VERSION = (CSVLogger, TensorBoardLogger)


_trainings = itertools.count(1)


def key_of_training() -> str:
    """Of the next training in this process: all processes of a job have them in one order."""
    return f"job/loggers/{next(_trainings)}"


def publish(trainer: Any, session: Session, key: str) -> None:
    """On rank 0, when training begins: which folders the loggers have chosen."""
    versions = [each.version if isinstance(each, _WITH_VERSION) else None for each in trainer.loggers]
    session.store("set", key, json.dumps(versions).encode(), ends_with_generation=False)


def follow(trainer: Any, session: Session, key: str) -> None:
    """The loggers choose these folders, too, if training has begun."""
    kept = session.kept(key)
    if kept is None:
        return
    for logger, version in zip(trainer.loggers, json.loads(kept), strict=True):
        if isinstance(logger, _WITH_VERSION) and logger.version != version:
            logger._version = version
            logger._experiment = None


def take_over(trainer: Any, session: Session, key: str) -> None:
    """On rank 0, in a process that another one precedes, and that did not know its rank when it was set up."""
    follow(trainer, session, key)
    _log_hyperparams(trainer)


_begin_anew = _ExperimentWriter._check_log_dir_exists


def _begin_or_go_on(self: Any) -> None:
    """A CSVLogger deletes what it finds in its folder. Here not what was written by this job."""
    session = session_or_none()
    key = f"job/csv/{self.log_dir}"
    if session is None or not session.is_over(key):
        _begin_anew(self)
        if session is not None:
            session.store("set", key, b"1", ends_with_generation=False)
    elif (path := Path(self.metrics_file_path)).is_file():
        with path.open(newline="") as file:
            self.metrics_keys = next(csv.reader(file), [])


_ExperimentWriter._check_log_dir_exists = _begin_or_go_on  # type: ignore[method-assign]
