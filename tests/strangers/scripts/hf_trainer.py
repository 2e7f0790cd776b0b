"""An unchanged Hugging Face Trainer: torchrun's way, with its own checkpoints; it knows nothing of keepstep."""

import json
import os
import time
from pathlib import Path

import mine
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed


class Text(torch.utils.data.Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        tokens = torch.randint(0, 256, (24,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


class Progress(TrainerCallback):
    """A line for each step on rank 0."""

    def __init__(self, folder):
        self.path = Path(folder) / "progress.jsonl"

    def on_step_end(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            with open(self.path, "a") as out:
                out.write(json.dumps({"step": state.global_step, "mono": time.monotonic()}) + "\n")


def complete(checkpoint, world_size):
    """Whether a checkpoint is one: the process that wrote it may have been killed."""
    try:
        json.loads((checkpoint / "trainer_state.json").read_text())
        for rank in range(world_size):
            torch.load(checkpoint / f"rng_state_{rank}.pth", weights_only=False)
    except (OSError, ValueError, RuntimeError, EOFError):
        return False
    return True


def main(chosen):
    set_seed(7)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64, attention_dropout=0.1,
        )
    )  # fmt: skip
    folder = Path(chosen.out) / "checkpoints"
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(folder), max_steps=chosen.until, per_device_train_batch_size=4, learning_rate=1e-3,
            logging_steps=1, save_steps=6, save_total_limit=2, report_to=[], use_cpu=True, disable_tqdm=True,
            ddp_backend="gloo", seed=7,
        ),
        train_dataset=Text(),
        callbacks=[Progress(chosen.out)],
    )  # fmt: skip
    world_size = int(os.environ["WORLD_SIZE"])
    saved = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    usable = [path for path in saved if complete(path, world_size)]
    trainer.train(resume_from_checkpoint=str(usable[-1]) if usable else None)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    if trainer.is_world_process_zero():
        (Path(chosen.out) / "losses.json").write_text(json.dumps(losses))
    mine.leave(chosen.out, os.environ["RANK"], model=model.state_dict())


if __name__ == "__main__":
    main(mine.options())
