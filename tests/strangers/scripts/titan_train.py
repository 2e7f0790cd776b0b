"""A torchtitan trainer with all that it does around a step: logs for TensorBoard, checkpoints, validation."""

import json
import os
import signal
from pathlib import Path

import mine
import titan_cpu  # before what asks for the device
import torch
from datasets import load_dataset
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tokenizers import Tokenizer, models, pre_tokenizers
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.components.validate import Validator
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.hf_datasets import DatasetConfig
from torchtitan.hf_datasets.text_datasets import DATASETS, HuggingFaceTextDataLoader
from torchtitan.trainer import Trainer

from keepstep.integrations.torchtitan import recoverable

LETTERS = "abcdefghijklmnopqrstuvwxyz"
# What `--case` changes; degrees of parallelism for four ranks.
CASES = {
    "plain": {},
    "resumes": {},
    "hybrid": {"data_parallel_replicate_degree": 2},
    "tensor": {"tensor_parallel_degree": 2},
    "pipeline": {"pipeline_parallel_degree": 2, "pipeline_parallel_schedule": "1F1B"},
}


def write_once(path, text):
    """Several ranks may write the same."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(text)
    partial.replace(path)


def corpus(folder):
    """Texts of letters, which torchtitan streams, and a tokenizer of letters."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for number in range(80):
        generator = torch.Generator().manual_seed(number)
        letters = torch.randint(0, 26, (30 + number % 20,), generator=generator)
        lines.append(json.dumps({"text": "".join(LETTERS[int(each)] for each in letters)}))
    write_once(folder / "texts.jsonl", "\n".join(lines))
    tokenizer = Tokenizer(models.WordLevel({each: i for i, each in enumerate(["<s>", "</s>", *LETTERS])}, "<s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    write_once(folder / "tokenizer.json", tokenizer.to_str())
    write_once(folder / "tokenizer_config.json", json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    DATASETS["letters"] = DatasetConfig(
        path=str(folder / "texts.jsonl"),
        loader=lambda path: load_dataset("json", data_files=path, split="train", streaming=True),
        sample_processor=lambda sample: sample["text"],
    )


def dies_in(chosen, kind, name, step_of):
    """The process is killed before or after a method, where `--die` says so: RANK:before METHOD:STEP, ..."""
    original = getattr(kind, name)

    def may_die(when, step):
        here = f"{os.environ['RANK']}:{when} {name}:{step}"
        once = Path(chosen.out) / f"died at {here}"
        if here in chosen.die.split(", ") and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def method(self, *args, **kwargs):
        step = step_of(self, *args, **kwargs)
        may_die("before", step)
        found = original(self, *args, **kwargs)
        may_die("after", step)
        return found

    setattr(kind, name, method)


def tell(folder, path):
    """Writes what TensorBoard has, of all processes that logged for it, but for times and memory."""
    files = sorted(folder.rglob("events.out.tfevents.*"))
    found = [{"event": "folder", "number": number} for number, _ in enumerate({each.parent for each in files})]
    for each in files:
        events = EventAccumulator(str(each), purge_orphaned_data=False).Reload()
        for tag in events.Tags()["scalars"]:
            if tag.startswith(("loss", "grad", "lr", "n_tokens", "validation_metrics/loss")):
                found += [{"event": tag, "step": line.step, "value": line.value} for line in events.Scalars(tag)]
    found.sort(key=lambda line: (line.get("step", 0), line["event"]))
    write_once(path, "".join(json.dumps(line) + "\n" for line in found))


def local(state):
    return {name: each.to_local() if hasattr(each, "to_local") else each for name, each in state.items()}


def configuration(chosen):
    out = Path(chosen.out)
    folder = Path(chosen.saves or chosen.out)
    corpus(out / "corpus")
    texts = HuggingFaceTextDataLoader.Config(dataset="letters")
    dies_in(chosen, MetricsProcessor, "log", lambda self, step, *_, **__: step)
    dies_in(chosen, CheckpointManager, "dcp_save", lambda self, _, checkpoint_id, **__: int(checkpoint_id[-1]))
    dies_in(chosen, Validator, "validate", lambda self, parts, step: step)
    return Trainer.Config(
        model_spec=titan_cpu.small_llama(len(LETTERS) + 2),
        hf_assets_path=str(out / "corpus"),
        dump_folder=str(folder),
        loss=CrossEntropyLoss.Config(global_vocab_size=len(LETTERS) + 2),
        optimizer=default_adamw(lr=1e-2),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=2, total_steps=20, min_lr_factor=0.1),
        training=TrainingConfig(
            local_batch_size=2,
            global_batch_size=16 if chosen.case in ("plain", "resumes") else -1,
            seq_len=32,
            steps=chosen.until,
            disable_cuda_graphs=True,
            mixed_precision_param="float32",
        ),
        dataloader=texts,
        metrics=MetricsProcessor.Config(log_freq=1, enable_tensorboard=True),
        parallelism=ParallelismConfig(**CASES[chosen.case]),
        checkpoint=CheckpointManager.Config(
            enable=True, folder="checkpoints", interval=3, last_save_model_only=False, keep_latest_k=2
        ),
        validator=Validator.Config(enable=chosen.case != "pipeline", freq=3, steps=2, dataloader=texts),
    )


def main(chosen):
    trainer = recoverable(configuration(chosen), on_entry=mine.on_entry(chosen))
    trainer.train()
    trainer.close()
    if os.environ["RANK"] == "0":
        tell(Path(chosen.saves or chosen.out) / "tb", Path(chosen.out) / "told.jsonl")
    states = {f"model{number}": local(each.state_dict()) for number, each in enumerate(trainer.model_parts)}
    states["optimizers"] = local(trainer.optimizers.state_dict())
    mine.leave(chosen.out, os.environ["RANK"], **states)


if __name__ == "__main__":
    main(mine.options())
