"""A LightningModule and a Trainer as Lightning's own examples have them, with all that a Trainer does around a step."""

import json
import os
import time
from pathlib import Path

import keepstep.lightning
from keepstep.integrations.lightning import KeepstepCheckpointIO, KeepstepStrategy

# isort: split
import lightning as L
import mine
import torch
import torchmetrics
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger


class Model(L.LightningModule):
    def __init__(self, case, elastic=False):
        super().__init__()
        self.case = case
        self.elastic = elastic
        self.automatic_optimization = case != "manual"
        self.net = mine.Net(width=64, statistics=case != "evaluates after" and not elastic)
        self.error = torchmetrics.MeanSquaredError()

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        predicted = self(x)
        loss = mine.loss_of(predicted, y)
        self.error(predicted, y)
        self.log("loss", loss, prog_bar=True, on_step=True, on_epoch=True, sync_dist=True)
        self.log("error", self.error, on_step=False, on_epoch=True)
        if self.elastic:
            if self.current_epoch == 0:  # later no rank computes it, also none that joins
                self.log("first", loss, on_step=False, on_epoch=True, sync_dist=True)
            self.log("seen", float(len(x)), on_step=False, on_epoch=True, reduce_fx="sum", sync_dist=True)
        if self.case != "manual":
            return loss
        optimizer, schedule = self.optimizers(), self.lr_schedulers()
        self.manual_backward(loss / 2)
        if batch_idx % 2 == 1 or self.trainer.is_last_batch:
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        noise = 0 if self.elastic else 0.01 * torch.randn_like(x)
        self.log("val_loss", mine.loss_of(self(x + noise), y), sync_dist=True)

    def predict_step(self, batch, batch_idx):
        return self(batch[0])

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        if self.case == "plateau":
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **mine.HALVES)
            how = {"scheduler": plateau, "monitor": "val_loss", "interval": "epoch", "frequency": 1}
            return {"optimizer": optimizer, "lr_scheduler": how}
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.7)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Data(L.LightningDataModule):
    def __init__(self, folder, samples=96, held_out=32):
        super().__init__()
        self.folder = Path(folder)
        self.samples, self.held_out = samples, held_out

    def prepare_data(self):
        with (self.folder / "prepared").open("a") as out:
            out.write("once\n")

    def train_dataloader(self):
        assert (self.folder / "prepared").exists()
        return torch.utils.data.DataLoader(mine.Corpus(self.samples), batch_size=4, shuffle=True)

    def val_dataloader(self):
        return torch.utils.data.DataLoader(mine.Corpus(self.held_out, first=1000), batch_size=4)


class Dies(L.Callback):
    """Is killed in the hook that `--die RANK:HOOK:STEP` names."""

    def __init__(self, chosen):
        self.chosen = chosen

    def __getattribute__(self, name):
        if not name.startswith("on_") or name.endswith("checkpoint"):
            return super().__getattribute__(name)
        return lambda trainer, *_, **__: trainer.sanity_checking or mine.may_die(self.chosen, name, trainer.global_step)


class Slow(L.Callback):
    def __init__(self, sleep_s):
        self.sleep_s = sleep_s

    def on_train_batch_start(self, *_):
        time.sleep(self.sleep_s)


class Told(L.Callback):
    """What callbacks are told on rank 0, a line for each event."""

    def __init__(self, folder):
        self.path = Path(folder) / "told.jsonl"

    def tell(self, event, trainer, **what):
        if trainer.is_global_zero and not trainer.sanity_checking:
            line = {"event": event, "step": trainer.global_step, "epoch": trainer.current_epoch, **what}
            with self.path.open("a") as out:
                out.write(json.dumps(line) + "\n")

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if module.elastic:  # batches are of one rank
            if (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
                [group] = trainer.optimizers[0].param_groups
                self.tell("step", trainer, rate=group["lr"], index=(batch_idx + 1) // trainer.accumulate_grad_batches)
            return
        loss = {} if module.case == "manual" else {"loss": float(outputs["loss"])}
        rate = {"rate": trainer.optimizers[0].param_groups[0]["lr"]} if module.case == "plateau" else {}
        self.tell("batch", trainer, index=batch_idx, x=float(batch[0].sum()), **loss, **rate)

    def on_validation_end(self, trainer, module):
        self.tell("validated", trainer, loss=float(trainer.callback_metrics["val_loss"]))

    def on_train_epoch_end(self, trainer, module):
        metrics = trainer.callback_metrics
        if module.elastic:  # what ranks logged that have left is not in the mean
            assert metrics["loss_epoch"].isfinite() and metrics["error"].isfinite()
            self.tell("epoch", trainer, seen=float(metrics["seen"]))
            return
        self.tell("epoch", trainer, loss=float(metrics["loss_epoch"]), error=float(metrics["error"]))

    def on_train_end(self, trainer, module):
        self.tell("end", trainer)


# What `--case` adds to the arguments of the Trainer.
CASES = {
    "plain": {},
    "evaluates after": {},
    "background": {},
    "background resumes": {},
    "ring": {},  # the data module's batches come from the ring of the node
    "limited": {"limit_train_batches": 5, "val_check_interval": 3},
    "plateau": {},
    "fits twice": {"max_epochs": 3, "check_val_every_n_epoch": None, "val_check_interval": 8},
    "manual": {"accumulate_grad_batches": 1, "gradient_clip_val": None},
    "resumes": {},
    "stops early": {"val_check_interval": 2, "max_epochs": 40, "max_steps": -1},
}


def main(chosen):
    L.seed_everything(7)
    folder = Path(chosen.saves or chosen.out) / "checkpoints"
    saves = ModelCheckpoint(folder, "{step}", monitor="val_loss", save_top_k=2, save_last=True)
    arguments = {
        "max_epochs": 5, "max_steps": chosen.until, "accumulate_grad_batches": 2, "gradient_clip_val": 1.0,
        "val_check_interval": 4, "log_every_n_steps": 1, "enable_progress_bar": True, "accelerator": "cpu",
        "callbacks": [Dies(chosen), Slow(chosen.sleep), Told(chosen.out), saves, LearningRateMonitor()],
        "logger": CSVLogger(chosen.out, version="csv"), "strategy": "keepstep",
    }  # fmt: skip
    if chosen.case == "stops early":
        arguments["callbacks"].append(EarlyStopping("val_loss", min_delta=100, patience=6))
    if chosen.case.startswith("background"):
        arguments["plugins"] = [KeepstepCheckpointIO(os.environ.get("CHECKPOINTS_TO"))]
    data = Data(chosen.out)
    if chosen.global_batch:  # 10 steps in an epoch
        data = Data(chosen.out, samples=10 * chosen.global_batch, held_out=48)
        del arguments["accumulate_grad_batches"]
        arguments |= {"strategy": KeepstepStrategy(global_batch=chosen.global_batch), "max_epochs": chosen.until}
    if (on_entry := mine.on_entry(chosen)) is not None:
        arguments |= {"strategy": KeepstepStrategy(on_entry=on_entry)}
    trainer = L.Trainer(**(arguments | CASES[chosen.case]))
    model = Model(chosen.case, elastic=bool(chosen.global_batch))
    last = folder / "last.ckpt"
    if chosen.case == "ring":
        data = keepstep.lightning.cached(data)
    trainer.fit(model, data, ckpt_path=last if chosen.saves and last.exists() else None)
    if chosen.case == "fits twice":
        trainer.fit_loop.max_epochs = 6
        trainer.fit(model, data)
    if chosen.case == "evaluates after":
        mine.may_die(chosen, "after", 0)
        [found] = trainer.validate(model, Data(chosen.out))
        predicted = trainer.predict(model, Data(chosen.out).val_dataloader())
        [best] = trainer.validate(model, Data(chosen.out), ckpt_path="best")
        if trainer.is_global_zero:
            results = [{"validated": found["val_loss"], "best": best["val_loss"],
                        "predicted": float(sum(each.sum() for each in predicted))}]  # fmt: skip
            (Path(chosen.out) / "losses.json").write_text(json.dumps(results))
    mine.leave(chosen.out, os.environ["RANK"], model=model.state_dict())


if __name__ == "__main__":
    main(mine.options())
