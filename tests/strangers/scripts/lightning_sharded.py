"""A LightningModule that FSDP2 shards, as Lightning's own examples of ModelParallelStrategy have it."""

import os
from pathlib import Path

from keepstep.integrations.lightning import KeepstepModelParallelStrategy

# isort: split
import lightning as L
import mine
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning_fit import Data, Dies, Model, Slow, Told
from torch.distributed.fsdp import fully_shard


class Sharded(Model):
    def __init__(self):
        super().__init__("plain")
        self.net = mine.Net(width=64, statistics=False)

    def configure_model(self):
        mesh = self.device_mesh["data_parallel"]
        for layer in self.net.body:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(self.net, mesh=mesh)


def main(chosen):
    L.seed_everything(7)
    saves = ModelCheckpoint(Path(chosen.out) / "checkpoints", "{step}", monitor="val_loss", save_last=True)
    on_entry = mine.on_entry(chosen)
    trainer = L.Trainer(
        max_epochs=5, max_steps=chosen.until, accumulate_grad_batches=2, gradient_clip_val=1.0, val_check_interval=4,
        log_every_n_steps=1, enable_progress_bar=False, accelerator="cpu",
        strategy=KeepstepModelParallelStrategy(on_entry=on_entry) if on_entry else "keepstep_model_parallel",
        callbacks=[Dies(chosen), Slow(chosen.sleep), Told(chosen.out), saves, LearningRateMonitor()],
        logger=CSVLogger(chosen.out, version="csv"),
    )  # fmt: skip
    model = Sharded()
    trainer.fit(model, Data(chosen.out))
    mine.leave(chosen.out, os.environ["RANK"], model={n: p.to_local() for n, p in model.named_parameters()})


if __name__ == "__main__":
    main(mine.options())
