"""`keepstep.lightning`: a real Trainer reads from the ring, and goes on from its checkpoint."""

import os
import time

import lightning
import torch

import keepstep.lightning


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 21

    def __getitem__(self, number):
        return torch.tensor([float(number)])


class Data(lightning.LightningDataModule):
    def train_dataloader(self):
        return torch.utils.data.DataLoader(Numbers(), batch_size=2, shuffle=True)


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []

    def training_step(self, batch, _number):
        self.seen.append([int(each) for each in batch.flatten()])
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-4)


class Save(lightning.Callback):
    def __init__(self, path, step):
        self.path = path
        self.step = step

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


def fit(folder, job, monkeypatch, checkpoint=None, **limits):
    monkeypatch.setenv("KEEPSTEP_JOB", f"lightning-{job}-{os.getpid()}-{time.monotonic_ns()}")
    model = Model()
    trainer = lightning.Trainer(
        default_root_dir=folder, accelerator="cpu", devices=1, use_distributed_sampler=False, logger=False,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False, **limits,
    )  # fmt: skip
    trainer.fit(model, keepstep.lightning.cached(Data(), name=job), ckpt_path=checkpoint)
    return model.seen


def test_a_trainer_reads_from_the_ring_and_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    whole = fit(tmp_path, "whole", monkeypatch, max_epochs=2)
    assert len(whole) == 22
    epochs = [sorted(each for batch in whole[at : at + 11] for each in batch) for at in (0, 11)]
    assert epochs == [list(range(21))] * 2
    assert whole[:11] != whole[11:]
    seen = fit(tmp_path, "first", monkeypatch, max_steps=15, callbacks=[Save(tmp_path / "part.ckpt", 15)])
    rest = fit(tmp_path, "second", monkeypatch, checkpoint=tmp_path / "part.ckpt", max_epochs=2)
    assert seen + rest == whole
