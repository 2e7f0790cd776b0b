"""A Hugging Face Trainer made recoverable, with all that its loop does around a step: evaluation, checkpoints, logs."""

import json
import os
import time
from pathlib import Path

import mine
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    EarlyStoppingCallback,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from keepstep.integrations.transformers import recoverable


class Text(torch.utils.data.Dataset):
    def __init__(self, length=96):
        self._length = length

    def __len__(self):
        return self._length

    def __getitem__(self, index):
        tokens = torch.randint(0, 256, (24,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


class Dies(TrainerCallback):
    """Is killed in the callback that `--die RANK:EVENT:STEP` names."""

    def __init__(self, chosen):
        self.chosen = chosen

    def __getattribute__(self, name):
        if not name.startswith("on_"):
            return super().__getattribute__(name)
        return lambda args, state, control, **kwargs: mine.may_die(self.chosen, name, state.global_step)


class Slow(TrainerCallback):
    def __init__(self, sleep_s):
        self.sleep_s = sleep_s

    def on_step_begin(self, args, state, control, **kwargs):
        time.sleep(self.sleep_s)


class Told(TrainerCallback):
    """What callbacks are told on rank 0, a line for each event."""

    def __init__(self, folder):
        self.path = Path(folder) / "told.jsonl"

    def tell(self, event, state, **what):
        if state.is_world_process_zero:
            with open(self.path, "a") as out:
                out.write(json.dumps({"event": event, "step": state.global_step, **what}) + "\n")

    def on_step_end(self, args, state, control, **kwargs):
        self.tell("step", state, epoch=state.epoch)

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        self.tell("evaluate", state, loss=metrics["eval_loss"])

    def on_save(self, args, state, control, **kwargs):
        self.tell("save", state)

    def on_log(self, args, state, control, logs, **kwargs):
        self.tell("log", state, **{name: logs[name] for name in ("loss", "grad_norm", "learning_rate") if name in logs})

    def on_epoch_end(self, args, state, control, **kwargs):
        self.tell("epoch", state)


# What `--case` adds to the arguments of the Trainer.
CASES = {
    "plain": {},
    "lora": {},
    "evaluates after": {"eval_strategy": "no"},
    "plateau": {
        "lr_scheduler_type": "reduce_lr_on_plateau", "metric_for_best_model": "loss", "eval_steps": 2,
        "lr_scheduler_kwargs": mine.HALVES,
    },
    "resumes": {"lr_scheduler_type": "constant"},  # follows from no last step
    "stops early": {
        "eval_steps": 2, "save_steps": 2, "load_best_model_at_end": True, "metric_for_best_model": "eval_loss",
    },
}  # fmt: skip


def main(chosen):
    set_seed(7)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64, attention_dropout=0.1,
        )
    )  # fmt: skip
    if chosen.case == "lora":
        model = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    arguments = {
        "max_steps": chosen.until, "per_device_train_batch_size": 4, "learning_rate": 1e-3, "logging_steps": 1,
        "gradient_accumulation_steps": 2, "save_steps": 6, "eval_strategy": "steps", "eval_steps": 4, "seed": 7,
        "save_total_limit": 2, "report_to": [], "use_cpu": True, "disable_tqdm": True,
    }  # fmt: skip
    folder = Path(chosen.saves or chosen.out) / "checkpoints"
    trainer = Trainer(
        model=model,
        args=TrainingArguments(output_dir=str(folder), **(arguments | CASES[chosen.case])),
        train_dataset=Text(),
        eval_dataset=Text(16),
        callbacks=[Dies(chosen), Told(chosen.out), Slow(chosen.sleep)],
    )
    if chosen.case == "stops early":
        trainer.add_callback(EarlyStoppingCallback(early_stopping_patience=2, early_stopping_threshold=100))
    trainer = recoverable(trainer, global_batch=chosen.global_batch, on_entry=mine.on_entry(chosen))
    trainer.train(resume_from_checkpoint=bool(chosen.saves) and any(folder.glob("checkpoint-*")))
    if chosen.case == "evaluates after":
        mine.may_die(chosen, "after", 0)
        metrics = trainer.evaluate()
        predicted = trainer.predict(Text(8)).predictions
        trainer.state.log_history.append({"evaluated": metrics["eval_loss"], "predicted": float(predicted.sum())})
    if trainer.is_world_process_zero():
        (Path(chosen.out) / "losses.json").write_text(json.dumps(trainer.state.log_history))
    mine.leave(chosen.out, os.environ["RANK"], model=model.state_dict())


if __name__ == "__main__":
    main(mine.options())
