"""Builds a torchtitan trainer where a rank is known, and no peer can be asked."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import torch.distributed.checkpoint as dcp
from torchtitan.components import metrics
from torchtitan.tools import utils

import keepstep
from keepstep import KeepstepError
from keepstep._session import Session, session
from keepstep.integrations.torchtitan.loop import recovering
from keepstep.integrations.torchtitan.rank_state import RankState, StepFigures

if TYPE_CHECKING:
    from keepstep.torch.runtime.run import Run


def require_recoverable(config: Any) -> None:
    """Raises KeepstepError for what a trainer of `config` could not recover."""
    wrong = {
        f"{utils.device_type.upper()} devices (keepstep protects sharded state on CPUs only in this version)": (
            utils.device_type != "cpu"
        ),
        "an elastic job (--nnodes MIN:MAX)": session("recoverable").welcome.elastic,
        "comm.mode (leave it 'default')": config.comm.mode != "default",
        "checkpoint.async_mode (take 'disabled')": getattr(config.checkpoint, "async_mode", "disabled") != "disabled",
        "checkpoint.create_seed_checkpoint (make it without keepstep run)": config.checkpoint.create_seed_checkpoint,
        "metrics.save_for_all_ranks": config.metrics.save_for_all_ranks,
    }
    if found := [name for name, on in wrong.items() if on]:
        raise KeepstepError(f"recoverable: this version cannot recover torchtitan with {', '.join(found)}")


def build(run: Run, config: Any) -> keepstep.State:
    """The state of the trainer of `config`; beside it `trainer`, and `first`: where it begins (`RankState`)."""
    with _logs_of_one_job(run._session):
        trainer = recovering(config._owner)(config=dataclasses.replace(config))  # as its build() does
    if run._session.need_rank("torchtitan").version == 0:
        with _loads_alone():
            trainer.checkpointer.load(step=trainer.config.checkpoint.load_step)
    position = RankState(trainer)
    position.take(StepFigures())
    named: dict[str, Any] = {"position": position}
    for kind, items in (
        ("model", trainer.model_parts),
        ("optimizer", trainer.optimizers.optimizers),
        ("schedule", trainer.lr_schedulers.schedulers),
    ):
        named |= {f"{kind}{number or ''}": each for number, each in enumerate(items)}
    return keepstep.State(**named).with_unprotected(trainer=trainer, first=position.taken)


@contextlib.contextmanager
def _loads_alone() -> Iterator[None]:
    """Each rank reads its parts of a checkpoint by itself."""
    checkpoint: Any = dcp
    load = checkpoint.load
    checkpoint.load = functools.partial(load, no_dist=True)
    try:
        yield
    finally:
        checkpoint.load = load


@contextlib.contextmanager
def _logs_of_one_job(current: Session) -> Iterator[None]:
    """TensorBoard's folder, which is named after the time, is that of the job's first process."""
    now = datetime.now().isoformat()
    _, _, _, kept = current.store(
        "compare_set", current.key("torchtitan/began"), b"0:" + now.encode(), ends_with_generation=False
    )
    began = datetime.fromisoformat((kept or now.encode()).decode())

    class JobTime(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return began

    metrics.datetime = JobTime
    try:
        yield
    finally:
        metrics.datetime = datetime
