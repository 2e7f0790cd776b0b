"""Measures recipes' models without their weights, on meta tensors, which have no memory: a line of JSON each.

python meta.py recipe.yaml ...
"""

import json
import sys
from typing import Any

import torch
from transformers import AutoModelForCausalLM

import parts
from keepstep.recipe import read
from keepstep.recipe.settings import Recipe


def built(recipe: Recipe) -> Any:
    model = AutoModelForCausalLM.from_config(parts.config_of(recipe), dtype=getattr(torch, recipe.model.dtype))
    if recipe.kind in ("lora", "dpo") and recipe.lora.rank:
        model = parts.with_adapters(model, recipe)
    return model.train()


def experts_of(config: Any) -> int:
    """How many a layer has."""
    return int(getattr(config, "num_local_experts", None) or config.n_routed_experts)


def bytes_of(parameters: Any) -> int:
    return sum(each.numel() * each.element_size() for each in parameters)


def saved_for_backward(model: Any, recipe: Recipe) -> int:
    """Bytes that a forward and its loss keep for the backward of one micro-batch, beside the parameters."""
    own = {each.untyped_storage()._cdata for each in [*model.parameters(), *model.buffers()]}
    saved: dict[int, torch.UntypedStorage] = {}
    began: list[int] = []
    in_layers: list[int] = []
    inputs: list[int] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            saved[storage._cdata] = storage
        return tensor

    def now() -> int:
        return sum(storage.nbytes() for storage in saved.values())

    def before(layer: Any, arguments: tuple[Any, ...]) -> None:
        began.append(now())
        inputs.append(arguments[0].numel() * arguments[0].element_size())

    for layer in parts.layers_of(model):
        layer.register_forward_pre_hook(before)
        layer.register_forward_hook(lambda *_: in_layers.append(now() - began[-1]))
    rows, length = recipe.train.micro_batch * (2 if recipe.kind == "dpo" else 1), recipe.data.sequence_length
    tokens = torch.zeros(rows, length, dtype=torch.long)
    mask: dict[str, Any] = {"attention_mask": torch.ones(rows, 1, length, length, dtype=torch.bool)}
    if model.config.model_type == "gpt_oss":
        mask = parts.packed(model.config, tokens, tokens)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = model(input_ids=tokens, use_cache=False, **mask).logits
        torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
    if recipe.model.recompute:  # the inputs of all layers stay, and one layer is there whole while it is computed again
        return now() - sum(in_layers) + sum(inputs) + max(in_layers)
    return now()


def sizes_of(recipe: Recipe) -> dict[str, Any]:
    """For `keepstep.recipe.plan.Sizes`."""
    with torch.device("meta"):
        model = built(recipe)
        trained = [each for each in model.parameters() if each.requires_grad]
        layers = [bytes_of(layer.parameters()) for layer in parts.layers_of(model)]
        experts = sum(each.numel() for name, each in model.named_parameters() if ".experts." in name)
        found = {
            "parameters": sum(each.numel() for each in model.parameters()),
            "trained": sum(each.numel() for each in trained),
            "experts": experts,
            "expert_share": model.config.num_experts_per_tok / experts_of(model.config) if experts else 1.0,
            "weight_bytes": bytes_of(model.parameters()),
            "trained_bytes": bytes_of(trained),
            "layer_bytes": max(layers),
            "outside_bytes": bytes_of(model.parameters()) - sum(layers),
        }
        if recipe.train.autocast:
            model.to(torch.bfloat16)  # as autocast computes
        return found | {"activation_bytes": saved_for_backward(model, recipe)}


for file in sys.argv[1:]:
    print(json.dumps(sizes_of(read([file]))), flush=True)
