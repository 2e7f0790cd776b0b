"""A loop as Fabric's own examples have it, with accumulation, clipping, logs, an evaluation and a checkpoint, and the
lines that keepstep needs."""

import csv
import json
import os
import time
from pathlib import Path

from keepstep.integrations.lightning import Fabric, KeepstepCheckpointIO, KeepstepFabricStrategy

# isort: split
import mine
import torch
from lightning.fabric.loggers import CSVLogger, Logger

# What `--case` changes.
ACCUMULATED = {"uneven": 4}  # of 6 batches in an epoch: steps take batches of two epochs
PRECISION = {"bf16": "bf16-mixed"}


class Told(Logger):
    """A line for each call on rank 0."""

    name = version = None

    def __init__(self, path):
        self.path = path

    def log_hyperparams(self, *_, **__):
        pass

    def log_metrics(self, metrics, step=None):
        if os.environ["RANK"] == "0":
            with self.path.open("a") as out:
                out.write(json.dumps({"event": "log", "step": step, **metrics}) + "\n")


def main(chosen):
    out = Path(chosen.out)
    elastic = chosen.global_batch is not None
    strategy = "keepstep"
    if elastic or (on_entry := mine.on_entry(chosen)) is not None:
        strategy = KeepstepFabricStrategy(global_batch=chosen.global_batch, on_entry=None if elastic else on_entry)
    logger = CSVLogger(out, version="csv" if chosen.case == "plain" else None, flush_logs_every_n_steps=1)
    fabric = Fabric(
        accelerator="cpu", strategy=strategy, precision=PRECISION.get(chosen.case),
        plugins=KeepstepCheckpointIO() if chosen.case == "uneven" else None, loggers=[logger, Told(out / "told.jsonl")],
    )  # fmt: skip
    fabric.seed_everything(7)
    with fabric.rank_zero_first():
        if fabric.is_global_zero:
            (out / "prepared").touch()
        assert (out / "prepared").exists()
    samples, held_out_samples = (3 * chosen.global_batch, 48) if elastic else (96, 32)
    train_data = torch.utils.data.DataLoader(mine.Corpus(samples), batch_size=4, shuffle=True)
    held_out = torch.utils.data.DataLoader(mine.Corpus(held_out_samples, first=1000), batch_size=4)
    train_data, held_out = fabric.setup_dataloaders(train_data, held_out)
    model = mine.Net(width=64, statistics=not elastic)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer = fabric.setup(model, optimizer)
    if chosen.case == "plateau":
        scheduler = fabric.strategy.schedule(torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **mine.HALVES))
    else:
        scheduler = fabric.strategy.schedule(torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7))
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "data": train_data}
    saves = Path(chosen.saves or out) / "checkpoints"
    if chosen.saves and (last := sorted(saves.glob("*.ckpt"))):
        fabric.load(last[-1], state)
    noise = 0 if elastic else 0.01

    def train(fabric):
        accumulated = fabric.strategy.accumulation if elastic else ACCUMULATED.get(chosen.case, 2)
        for epoch in fabric.strategy.epochs(chosen.until // 3):
            model.train()
            total = torch.zeros(())
            for batch_idx, (x, y) in enumerate(train_data):
                accumulating = not fabric.strategy.ends_step if elastic else (batch_idx + 1) % accumulated != 0
                with fabric.no_backward_sync(model, enabled=accumulating):
                    loss = mine.loss_of(model(x), y)
                    fabric.backward(loss / accumulated)
                time.sleep(chosen.sleep)
                mine.may_die(chosen, "batch", 10 * epoch + batch_idx)
                total += loss.detach() / accumulated
                if not elastic:
                    fabric.log("loss", fabric.all_reduce(loss.detach().clone()), step=fabric.strategy.step)
                elif not accumulating:
                    fabric.log("loss", fabric.all_reduce(total), step=fabric.strategy.step)
                    total = torch.zeros(())
                if not accumulating:
                    fabric.clip_gradients(model, optimizer, max_norm=1.0)
                    optimizer.step()
                    optimizer.zero_grad()
            if chosen.case != "plateau":
                scheduler.step()
            model.eval()
            losses = []
            with torch.no_grad():
                for x, y in held_out:
                    mine.may_die(chosen, "evaluate", epoch)
                    losses.append(mine.loss_of(model(x + noise * torch.randn_like(x)), y))
            val_loss = fabric.all_gather(torch.stack(losses)).mean()
            fabric.log_dict({"val_loss": val_loss, "rate": scheduler.get_last_lr()[0]}, step=fabric.strategy.step)
            if chosen.case == "plateau":
                scheduler.step(val_loss)
            mine.may_die(chosen, "logged", epoch)
            fabric.save(saves / f"{epoch}.ckpt", state)
            mine.may_die(chosen, "saved", epoch)

    fabric.launch(train)
    if os.environ["RANK"] == "0":
        with open(Path(logger.log_dir) / "metrics.csv", newline="") as file:
            (out / "losses.json").write_text(json.dumps(list(csv.DictReader(file))))
    mine.leave(chosen.out, os.environ["RANK"], model=model.state_dict(), optimizer=optimizer.state_dict())


if __name__ == "__main__":
    main(mine.options())
