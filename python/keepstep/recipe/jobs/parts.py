"""What the scripts of recipes share: the model, its sharding, the optimizer, batches on a device, the result."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import math
import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

import keepstep
from keepstep.data import document_mask
from keepstep.recipe.settings import Recipe

logging.disable_progress_bar()
warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated")  # peft uses that name


def model_of(recipe: Recipe) -> Any:
    """The weights in `model.path`, or random ones of this shape, which `run.setup` seeds. In main memory."""
    dtype = getattr(torch, recipe.model.dtype)
    if recipe.model.path:
        model = AutoModelForCausalLM.from_pretrained(recipe.model.path, dtype=dtype, local_files_only=True)
    else:
        model = AutoModelForCausalLM.from_config(config_of(recipe), dtype=dtype)
    if recipe.model.recompute:
        recompute(model)
    return model.train()


def config_of(recipe: Recipe) -> Any:
    """The configuration of `model.path`, if it is there, otherwise of `model.shape`."""
    if recipe.model.path and (Path(recipe.model.path) / "config.json").exists():
        return AutoConfig.from_pretrained(recipe.model.path, local_files_only=True)
    if recipe.model.type not in CONFIG_MAPPING:
        raise keepstep.KeepstepError(f"model.type: transformers has no {recipe.model.type}")
    config = CONFIG_MAPPING[recipe.model.type]
    known = {each.name for each in dataclasses.fields(config)} | set(config.attribute_map)
    for name in recipe.model.shape:  # transformers takes any name; some that models read are not declared
        near = difflib.get_close_matches(name, known, 1)
        if near and name not in known:
            raise keepstep.KeepstepError(
                f"model.shape.{name}: {config.__name__} has no such key; did you mean {near[0]}?"
            )
    return config(**recipe.model.shape)


def recompute(model: Any) -> None:
    enable = (
        getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    )  # its old name
    enable({"use_reentrant": False})


def with_adapters(model: Any, recipe: Recipe) -> Any:
    """peft's model: adapters on a frozen one."""
    from peft import LoraConfig, get_peft_model

    chosen = recipe.lora
    targets = chosen.targets if chosen.targets == "all-linear" else chosen.targets.split(",")
    return get_peft_model(
        model,
        LoraConfig(
            r=chosen.rank, lora_alpha=chosen.alpha, lora_dropout=chosen.dropout, target_modules=targets,
            task_type="CAUSAL_LM",
        ),
    )  # fmt: skip


def shard(model: Any, recipe: Recipe, run: keepstep.Run) -> None:
    """With `job.parallel: fsdp`: each rank keeps a part of every layer. Otherwise nothing."""
    if recipe.sharded:
        mesh = init_device_mesh(recipe.job.device, (run.world_size,))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if recipe.train.autocast else None)
        for layer in layers_of(model):
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)


def layers_of(model: Any) -> Any:
    """The decoder's layers, also inside peft's wrapper."""
    return getattr(model, "base_model", model).get_decoder().layers


def adamw(model: torch.nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    """Over what is trained. Weights of matrices decay; biases and norms do not."""
    trained = [each for each in model.parameters() if each.requires_grad]
    groups = [
        {"params": [each for each in trained if each.ndim >= 2], "weight_decay": recipe.train.weight_decay},
        {"params": [each for each in trained if each.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [each for each in groups if each["params"]], lr=recipe.train.learning_rate, betas=(0.9, 0.95)
    )


def cosine(optimizer: torch.optim.Optimizer, recipe: Recipe) -> torch.optim.lr_scheduler.LambdaLR:
    """Rises in a line, then falls to a tenth."""
    warmup, last = recipe.train.warmup_steps, recipe.train.steps

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return 0.55 + 0.45 * math.cos(math.pi * min(1.0, (step - warmup) / max(1, last - warmup)))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def destination(recipe: Recipe) -> keepstep.Destination:
    return keepstep.Destination(
        f"{recipe.out}/checkpoints", every_steps=recipe.job.checkpoint_every, keep_last=recipe.job.keep
    )


def device_of(recipe: Recipe) -> torch.device:
    """This rank's. A spare waits here for a rank, so no spare takes memory on a GPU."""
    if recipe.job.device == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


def autocast(recipe: Recipe) -> contextlib.AbstractContextManager[Any]:
    """Around a forward. FSDP2 casts by itself."""
    if recipe.train.autocast and not recipe.sharded:
        return torch.autocast(recipe.job.device, dtype=torch.bfloat16)
    return contextlib.nullcontext()


def to(device: torch.device, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.to(device) for name, tensor in batch.items()}


def packed(config: Any, document_ids: torch.Tensor, position_ids: torch.Tensor) -> dict[str, Any]:
    """Arguments of a forward over samples of several documents, none of which attends to another.

    transformers sees from `position_ids` where a document begins. For GPT-OSS it does not, so here are its masks.
    """
    if config.model_type != "gpt_oss":
        return {"position_ids": position_ids}
    seen = document_mask(document_ids)
    distance = position_ids.unsqueeze(-1) - position_ids.unsqueeze(-2)
    masks = {"full_attention": seen, "sliding_attention": seen & (distance < config.sliding_window).unsqueeze(1)}
    least = torch.finfo(torch.float32).min
    added = {
        name: torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, least) for name, mask in masks.items()
    }
    return {"position_ids": position_ids, "attention_mask": added}


def clip(model: torch.nn.Module, recipe: Recipe) -> float:
    """Limits the gradients' norm, and returns what it was."""
    trained = [each for each in model.parameters() if each.requires_grad]
    norm = torch.nn.utils.clip_grad_norm_(trained, recipe.train.clip)
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def _whole(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in model.state_dict().items():
        yield name, tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def export(model: Any, recipe: Recipe, run: keepstep.Run) -> None:
    """Writes OUT/model, which transformers or peft loads. Call it on all ranks at the end of the training function.

    May happen twice, if a rank dies meanwhile: the folder appears complete, or not at all.
    """
    state = dict(_whole(model)) if recipe.sharded else None  # the gathering needs all ranks
    if run.rank == 0:
        final, partial = Path(recipe.out) / "model", Path(recipe.out) / f"model.{os.getpid()}.partial"
        model.save_pretrained(partial, state_dict=state)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(partial, final)
