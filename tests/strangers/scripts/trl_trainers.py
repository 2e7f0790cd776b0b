"""TRL's trainers made recoverable, on a tokenizer and a model that are made here.

`--case`: sft, dpo, grpo, or grpo buffered, which generates for several steps at once.
"""

import copy
import json
import os
from pathlib import Path

import mine
import pyarrow
from datasets import Dataset
from hf_recoverable import Dies, Slow, Told
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

from keepstep.integrations.transformers import recoverable


def tokenizer():
    """A token for each byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(["<pad>", "<eos>", *alphabet])}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>")


def dataset(**columns):
    """With a fingerprint of its own: datasets 5.2 cannot compute one of a table of pyarrow 26."""
    return Dataset(pyarrow.table(columns), fingerprint="sums")


def sums(count):
    return [(f"{i % 10}+{i // 10 % 10}=", str(i % 10 + i // 10 % 10)) for i in range(count)]


def reward(completions, **kwargs):
    """The share of letters."""
    return [sum(symbol.isalpha() for symbol in text) / max(len(text), 1) for text in completions]


def made(case, model, common):
    questions, answers = zip(*sums(96), strict=True)
    if case == "sft":
        data = dataset(text=[question + answer for question, answer in sums(96)])
        return SFTTrainer, {"args": SFTConfig(max_length=16, **common), "eval_dataset": data.select(range(8))}, data
    if case == "dpo":
        data = dataset(prompt=questions, chosen=answers, rejected=["?"] * 96)
        args = DPOConfig(max_length=16, **common)
        return (
            DPOTrainer,
            {"args": args, "ref_model": copy.deepcopy(model), "eval_dataset": data.select(range(8))},
            data,
        )
    # What is generated serves several steps, and is used twice.
    often = {} if case == "grpo" else {"gradient_accumulation_steps": 2, "steps_per_generation": 4, "num_iterations": 2}
    args = GRPOConfig(num_generations=4, max_completion_length=6, **common | often | {"eval_strategy": "no"})
    return GRPOTrainer, {"args": args, "reward_funcs": reward}, dataset(prompt=questions)


def main(chosen):
    set_seed(7)
    symbols = tokenizer()
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(symbols), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, eos_token_id=1, bos_token_id=None,
        )
    )  # fmt: skip
    common = {
        "output_dir": str(Path(chosen.out) / "checkpoints"), "max_steps": chosen.until, "logging_steps": 1,
        "per_device_train_batch_size": 2, "learning_rate": 1e-3, "save_steps": 6, "eval_strategy": "steps",
        "eval_steps": 4, "seed": 7, "report_to": [],
        "use_cpu": True, "bf16": False, "disable_tqdm": True, "gradient_checkpointing": False,
    }  # fmt: skip
    kind, others, data = made(chosen.case, model, common)
    callbacks = [Dies(chosen), Told(chosen.out), Slow(chosen.sleep)]
    trainer = kind(model=model, train_dataset=data, processing_class=symbols, callbacks=callbacks, **others)
    trainer = recoverable(trainer, global_batch=chosen.global_batch)
    trainer.train()
    if trainer.is_world_process_zero():
        (Path(chosen.out) / "losses.json").write_text(json.dumps(trainer.state.log_history))
    mine.leave(chosen.out, os.environ["RANK"], model=model.state_dict())


if __name__ == "__main__":
    main(mine.options())
