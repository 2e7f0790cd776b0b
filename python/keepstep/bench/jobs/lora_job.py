"""The job of ``keepstep bench lora``: a Llama that is trained whole, or by adapters of which the base is 200 times as
large. Under keepstep and under torchrun, which then saves the adapters only, as PEFT does."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from transformers import LlamaConfig, LlamaForCausalLM

import keepstep
import library_work

RANK = 16  # of the adapters
EVERY_STEPS = 4
GLOBAL_BATCH = 4


class Text(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randint(0, 256, (24,), generator=torch.Generator().manual_seed(index))


def base_model(chosen: argparse.Namespace) -> Any:
    torch.manual_seed(7)
    base = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256, hidden_size=chosen.width, intermediate_size=chosen.width * 3, num_hidden_layers=6,
            num_attention_heads=8, num_key_value_heads=8, max_position_embeddings=64, tie_word_embeddings=False,
        )
    )  # fmt: skip
    if chosen.map is None:
        return base
    if not chosen.map.exists():
        mine = chosen.map.with_suffix(f".{os.getpid()}")
        torch.save(base.state_dict(), mine)
        with contextlib.suppress(FileExistsError):  # all have the same; the first file counts
            os.link(mine, chosen.map)
        mine.unlink()
    base.load_state_dict(torch.load(chosen.map, mmap=True), assign=True)
    return base


def build(chosen: argparse.Namespace) -> keepstep.State:
    model = base_model(chosen)
    if chosen.train == "adapters":
        config = LoraConfig(r=RANK, lora_alpha=2 * RANK, lora_dropout=0.1, target_modules=["q_proj", "v_proj"])
        model = get_peft_model(model, config)
    model.train()
    trained = [each for each in model.parameters() if each.requires_grad]
    return keepstep.State(model=model, optimizer=torch.optim.AdamW(trained, lr=1e-4))


def tell_sizes(chosen: argparse.Namespace, model: torch.nn.Module) -> None:
    sizes = {True: 0, False: 0}
    for each in model.parameters():
        sizes[each.requires_grad] += each.numel() * each.element_size()
    (chosen.out / "sizes.json").write_text(json.dumps({"trained_bytes": sizes[True], "frozen_bytes": sizes[False]}))


@keepstep.recoverable
def train_here(run: keepstep.Run, chosen: argparse.Namespace) -> None:
    state = run.setup(lambda: build(chosen))
    run.checkpoint(
        keepstep.Destination(str(chosen.out / "checkpoints"), every_steps=EVERY_STEPS, keep_last=1),
        memory_every_steps=1 if chosen.copies else None,
    )
    model = run.ddp(state.model)
    steps = library_work.Steps(chosen.commits)
    for step in run.steps(Text(), global_batch=GLOBAL_BATCH, micro_batch=1, last_step=chosen.until):
        for tokens in step:
            step.backward(model(input_ids=tokens, labels=tokens).loss)
        step.commit(state.optimizer.step)
        if step.number == 1 and run.rank == 0:
            tell_sizes(chosen, state.model)
        steps.write(step.number, run.rank, run.world_size)


def train_under_torchrun(chosen: argparse.Namespace) -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    state = build(chosen)
    model = torch.nn.parallel.DistributedDataParallel(state.model)
    steps = library_work.Steps(chosen.commits)
    text = Text()
    for number in range(1, chosen.until + 1):
        for sample in range(rank, GLOBAL_BATCH, world):
            tokens = text[number * GLOBAL_BATCH + sample][None]
            (model(input_ids=tokens, labels=tokens).loss * world / GLOBAL_BATCH).backward()
        state.optimizer.step()
        state.optimizer.zero_grad()
        if rank == 0 and number == 1:
            tell_sizes(chosen, state.model)
        if rank == 0 and number % EVERY_STEPS == 0:
            weights = get_peft_model_state_dict(state.model) if chosen.train == "adapters" else state.model.state_dict()
            folder = chosen.out / "checkpoints"
            folder.mkdir(exist_ok=True)
            torch.save({"model": weights, "optimizer": state.optimizer.state_dict()}, folder / "partial")
            (folder / "partial").rename(folder / f"step-{number}")
            for older in set(folder.glob("step-*")) - {folder / f"step-{number}"}:
                older.unlink()
        steps.write(number, rank, world)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--launcher", choices=("keepstep", "torchrun"), required=True)
    parser.add_argument("--train", choices=("adapters", "all"), required=True)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--map", type=Path, help="share the memory of the base, which is in this file")
    parser.add_argument("--copies", action="store_true", help="keep each version in the agent's memory, too")
    parser.add_argument("--commits", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--until", type=int, required=True)
    chosen = parser.parse_args()
    if chosen.launcher == "keepstep":
        train_here(chosen)
    else:
        train_under_torchrun(chosen)


if __name__ == "__main__":
    main()
