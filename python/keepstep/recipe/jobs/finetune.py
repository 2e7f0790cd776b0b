"""Fine-tuning on chats, or on questions and answers, that `keepstep data chat` made a corpus of.

With kind lora adapters are trained, on a frozen model, and OUT/model has the adapters.

keepstep run --nproc-per-node 2 --spares 1 finetune.py recipe.yaml
"""

import sys

import torch

import keepstep
import parts
from keepstep.data import PackedDataset
from keepstep.recipe import read

recipe = read(sys.argv[1:])


def build(run: keepstep.Run) -> keepstep.State:
    model = parts.model_of(recipe)
    if recipe.kind == "lora":
        model = parts.with_adapters(model, recipe)  # what is frozen is neither sent nor saved
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
    data = PackedDataset(recipe.corpus, recipe.data.sequence_length, too_long="drop")
    for step in run.steps(
        data,
        global_batch=recipe.train.global_batch,
        micro_batch=recipe.train.micro_batch,
        last_step=recipe.train.steps,
    ):
        for batch in step:
            batch = parts.to(device, batch)
            documents = parts.packed(state.model.config, batch["document_ids"][:, :-1], batch["position_ids"][:, :-1])
            with parts.autocast(recipe):
                logits = model(input_ids=batch["tokens"][:, :-1], use_cache=False, **documents).logits
            answers = batch["loss_mask"][:, 1:]
            loss = torch.nn.functional.cross_entropy(
                logits[answers].float(), batch["tokens"][:, 1:][answers], reduction="mean" if recipe.sharded else "sum"
            )
            # The mean over all tokens of answers in the step. Under FSDP2 each micro-batch has the same weight.
            step.backward(loss, count=None if recipe.sharded else int(answers.sum()))
        norm = parts.clip(state.model, recipe)
        step.commit(state.optimizer.step, state.schedule.step, veto=keepstep.veto.nonfinite)
        step.log(norm=norm, learning_rate=state.schedule.get_last_lr()[0])
    parts.export(state.model, recipe, run)


train()
