"""Accelerate's nlp_example.py, with accumulation, a model made from its configuration, and the lines that keepstep
needs."""

import json
import os
import time
from pathlib import Path

import mine
import torch
from accelerate.utils import set_seed
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

from keepstep.integrations.accelerate import Accelerator

EPOCHS = 3


class Pairs(Dataset):
    """The label says whether the first number is even."""

    def __init__(self, length):
        self._length = length

    def __len__(self):
        return self._length

    def __getitem__(self, index):
        tokens = torch.randint(1, 64, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens[0] % 2}


def training_function(chosen):
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=2, global_batch=chosen.global_batch, on_entry=mine.on_entry(chosen)
    )
    epochs = chosen.until if chosen.global_batch else EPOCHS
    told = Path(chosen.out) / "told.jsonl"
    set_seed(42)
    train_dataloader = DataLoader(Pairs(90), shuffle=True, batch_size=4)
    eval_dataloader = DataLoader(Pairs(21), shuffle=False, batch_size=4)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=64,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            num_labels=2,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if chosen.case == "plateau":
        lr_scheduler = ReduceLROnPlateau(optimizer, **mine.HALVES)
    else:
        lr_scheduler = get_linear_schedule_with_warmup(optimizer, 4, len(train_dataloader) * epochs)
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
    )

    @accelerator.recoverable
    def train():
        for epoch in accelerator.epochs(epochs):
            model.train()
            for batch in train_dataloader:
                with accelerator.accumulate(model):
                    loss = model(**batch).loss
                    train_dataloader.log(loss=loss.item(), rate=lr_scheduler.get_last_lr()[0])
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    time.sleep(chosen.sleep)
                    optimizer.step()
                    if chosen.case != "plateau":
                        lr_scheduler.step()
                    optimizer.zero_grad()
            model.eval()
            right = seen = 0
            lost = 0.0
            for batch in eval_dataloader:
                with torch.no_grad():
                    logits = model(**batch).logits
                    predictions = logits.argmax(dim=-1)
                    losses = torch.nn.functional.cross_entropy(logits, batch["labels"], reduction="none")
                mine.may_die(chosen, "evaluate", epoch)
                predictions, references, losses = accelerator.gather_for_metrics((predictions, batch["labels"], losses))
                lost += float(losses.sum())
                right += int((predictions == references).sum())
                seen += len(references)
            if chosen.case == "plateau":
                lr_scheduler.step(lost / seen)
            if accelerator.is_main_process:
                line = {"event": "evaluated", "epoch": epoch, "right": right, "seen": seen, "loss": lost}
                with open(told, "a") as out:
                    out.write(json.dumps(line) + "\n")

    train()
    mine.leave(
        chosen.out, os.environ["RANK"], model=accelerator.unwrap_model(model).state_dict(),
        optimizer=optimizer.state_dict(),
    )  # fmt: skip


if __name__ == "__main__":
    training_function(mine.options())
