"""Lightning's Trainer, with the strategy "ddp" under torchrun and "keepstep" under keepstep."""

from __future__ import annotations

import os
from typing import Any

import keepstep.integrations.lightning  # isort: skip  # noqa: F401
import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

import library_work


class Module(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = library_work.model()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self.model(**batch).loss
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class WritesSteps(L.Callback):
    def __init__(self, steps: library_work.Steps) -> None:
        self._steps = steps

    def on_train_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
        self._steps.write(trainer.global_step, trainer.global_rank, trainer.world_size)


def main() -> None:
    chosen = library_work.options()
    callbacks: list[Any] = [WritesSteps(library_work.Steps(chosen.commits))]
    if chosen.checkpoints is not None:
        callbacks.append(
            ModelCheckpoint(
                chosen.checkpoints, "{step}", every_n_train_steps=library_work.EVERY_STEPS, save_top_k=1,
                monitor="step", mode="max",
            )
        )  # fmt: skip
    torchrun = chosen.launcher == "torchrun"
    trainer = L.Trainer(
        strategy="ddp" if torchrun else "keepstep", devices=int(os.environ["LOCAL_WORLD_SIZE"]) if torchrun else "auto",
        accelerator="cpu", max_steps=chosen.until, max_epochs=-1, callbacks=callbacks, logger=False,
        enable_checkpointing=chosen.checkpoints is not None, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    loader = DataLoader(library_work.Text(), batch_size=library_work.PER_RANK, shuffle=True)
    saved = [] if chosen.checkpoints is None else list(chosen.checkpoints.glob("*.ckpt"))
    saved.sort(key=lambda path: path.stat().st_mtime)
    trainer.fit(Module(), loader, ckpt_path=str(saved[-1]) if saved else None)
    library_work.leave(chosen)


if __name__ == "__main__":
    main()
