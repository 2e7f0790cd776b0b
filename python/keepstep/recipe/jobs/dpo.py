"""Direct preference optimization on pairs of answers that `keepstep data chat --pairs` made a corpus of.

keepstep run --nproc-per-node 2 --spares 1 dpo.py recipe.yaml

The reference is the model without its adapters; with lora.rank=0 a frozen copy of the model.
"""

import copy
import sys
from typing import Any

import torch

import keepstep
import parts
from keepstep.data import PreferencePairs
from keepstep.recipe import read

recipe = read(sys.argv[1:])


def build(run: keepstep.Run) -> keepstep.State:
    model, reference = parts.model_of(recipe), None
    if recipe.lora.rank:
        model = parts.with_adapters(model, recipe)
    else:
        reference = copy.deepcopy(model).requires_grad_(False)
        parts.shard(reference, recipe, run)
        if recipe.sharded:
            reference.set_reshard_after_forward(True)  # also outside layers: no backward will do it
    parts.shard(model, recipe, run)
    optimizer = parts.adamw(model, recipe)
    schedule = parts.cosine(optimizer, recipe)
    if reference is not None and recipe.sharded:  # protected, so that a fault in its forward leaves no layer gathered
        return keepstep.State(model=model, optimizer=optimizer, schedule=schedule, reference=reference)
    state = keepstep.State(model=model, optimizer=optimizer, schedule=schedule)
    return state.with_unprotected(reference=reference)  # never changes, so every process builds its own


def of_answers(model: Any, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The logarithm of the probability of each chosen answer, and of each rejected one."""
    tokens, answers = batch["tokens"].flatten(0, 1), batch["loss_mask"].flatten(0, 1)[:, 1:]
    with parts.autocast(recipe):
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits  # padding comes last, so no token sees it
    each = -torch.nn.functional.cross_entropy(logits.float().transpose(1, 2), tokens[:, 1:], reduction="none")
    chosen, rejected = (each * answers).sum(1).view(-1, 2).unbind(1)
    return chosen, rejected


@keepstep.recoverable(redundancy=keepstep.Copies(recipe.job.copies))
def train(run: keepstep.Run) -> None:
    state = run.setup(lambda: build(run), sharded=recipe.sharded)
    run.checkpoint(parts.destination(recipe))
    device = parts.device_of(recipe)
    if not recipe.sharded:  # a sharded model is where its mesh is
        state.model.to(device)
        if state.reference is not None:
            state.reference.to(device)
    model = state.model if recipe.sharded else run.ddp(state.model)
    data = PreferencePairs(recipe.corpus, recipe.data.sequence_length)
    for step in run.steps(
        data,
        global_batch=recipe.train.global_batch,
        micro_batch=recipe.train.micro_batch,
        last_step=recipe.train.steps,
    ):
        preferred = 0.0
        for batch in step:
            batch = parts.to(device, batch)
            with torch.no_grad():
                if state.reference is not None:
                    before = of_answers(state.reference, batch)
                else:
                    with state.model.disable_adapter():
                        before = of_answers(state.model, batch)
            now = of_answers(model, batch)
            margin = recipe.dpo.beta * ((now[0] - before[0]) - (now[1] - before[1]))
            preferred += int((margin > 0).sum())
            step.backward(-torch.nn.functional.logsigmoid(margin).mean())
        norm = parts.clip(state.model, recipe)
        step.commit(state.optimizer.step, state.schedule.step, veto=keepstep.veto.nonfinite)
        step.log(norm=norm, learning_rate=state.schedule.get_last_lr()[0], preferred=preferred / len(step.sample_ids))
    parts.export(state.model, recipe, run)


train()
