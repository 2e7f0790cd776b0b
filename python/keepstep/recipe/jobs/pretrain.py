"""Pre-training, and continued pre-training: the next token of a corpus that `keepstep data build` made.

keepstep run --nproc-per-node 2 --spares 1 pretrain.py recipe.yaml
"""

import sys

import torch

import keepstep
import parts
from keepstep.data import TokenDataset
from keepstep.recipe import read

recipe = read(sys.argv[1:])


def build(run: keepstep.Run) -> keepstep.State:
    model = parts.model_of(recipe)
    parts.shard(model, recipe, run)
    optimizer = parts.adamw(model, recipe)
    schedule = parts.cosine(optimizer, recipe)
    return keepstep.State(model=model, optimizer=optimizer, schedule=schedule)


@keepstep.recoverable(redundancy=keepstep.Copies(recipe.job.copies))
def train(run: keepstep.Run) -> None:
    state = run.setup(lambda: build(run), sharded=recipe.sharded)
    run.checkpoint(parts.destination(recipe))
    device = parts.device_of(recipe)
    model = state.model if recipe.sharded else run.ddp(state.model.to(device))  # a sharded one is where its mesh is
    balanced = recipe.train.router_loss > 0 and hasattr(state.model.config, "output_router_logits")
    data = TokenDataset(recipe.corpus, recipe.data.sequence_length)
    for step in run.steps(
        data,
        global_batch=recipe.train.global_batch,
        micro_batch=recipe.train.micro_batch,
        last_step=recipe.train.steps,
    ):
        for tokens in step:
            tokens = tokens.to(device)
            with parts.autocast(recipe):
                out = model(
                    input_ids=tokens[:, :-1], use_cache=False, **({"output_router_logits": True} if balanced else {})
                )
            loss = torch.nn.functional.cross_entropy(out.logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
            if getattr(out, "aux_loss", None) is not None:
                loss = loss + recipe.train.router_loss * out.aux_loss
            step.backward(loss)
        norm = parts.clip(state.model, recipe)
        step.commit(state.optimizer.step, state.schedule.step, veto=keepstep.veto.nonfinite)
        step.log(norm=norm, learning_rate=state.schedule.get_last_lr()[0])
    parts.export(state.model, recipe, run)


train()
