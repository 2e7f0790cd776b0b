"""``Trainer._run_stage`` under keepstep: what it runs is a recoverable function."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import torch

import keepstep
from keepstep.integrations.lightning import results
from keepstep.torch.runtime.run import Run

if TYPE_CHECKING:
    from keepstep.integrations.lightning.strategy import KeepstepStrategy


def fit(trainer: Any) -> None:
    """Trains: each generation enters it again, after the last committed step."""
    strategy: KeepstepStrategy = trainer.strategy
    training = strategy.fit
    assert training is not None
    if trainer.fit_loop.skip:
        return
    training.begin()

    @keepstep.recoverable(rehearse=False)
    def lightning_fit(run: Run) -> list[Any]:
        try:
            training.enter(run)
            strategy.lacks_training = False
            with torch.autograd.set_detect_anomaly(trainer._detect_anomaly):
                trainer.fit_loop.run()
            saves_are_complete(strategy)
            return training.checkpoints()
        finally:
            training.leave()

    strategy.lacks_training = True
    training.finish(lightning_fit())


def saves_are_complete(strategy: Any) -> None:
    """Waits for checkpoints that are still being written: other ranks may load them next."""
    wait = getattr(strategy.checkpoint_io, "wait", None)
    if wait is not None:
        wait()


def evaluate(trainer: Any) -> Any:
    """Validates, tests or predicts, on all ranks; again, if a fault interrupts it."""
    strategy: KeepstepStrategy = trainer.strategy
    found: list[Any] = []
    module = trainer.lightning_module
    metrics = copy.deepcopy(results.take_metrics(module))

    @keepstep.recoverable(rehearse=False)
    def lightning_stage(run: Run) -> None:
        run.setup(lambda: keepstep.State(model=module))
        run._entries.init_process_group()
        run._form(f"Trainer.{trainer.state.fn}")
        strategy.enter(run)
        strategy.lacks_training = False
        results.put_back_metrics(module, metrics)  # an interrupted entry has counted batches
        if (counted := trainer._results) is not None:
            counted.clear()
            counted.batch = counted.batch_size = counted.dataloader_idx = None
        trainer._logger_connector.reset_results()
        trainer._logger_connector.reset_metrics()
        try:
            result = pl.Trainer._run_stage(trainer)
            run._check_interrupted()
            found[:] = [result]
        finally:
            strategy.leave()

    lightning_stage()
    return found[0] if found else None
