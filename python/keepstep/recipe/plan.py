"""What a recipe needs on each rank, from the sizes that meta tensors have. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from keepstep.recipe.settings import Recipe

GIB = 1 << 30


@dataclass(frozen=True)
class Sizes:
    """Of a recipe's model, as `jobs/meta.py` found them; bytes unless the name says otherwise."""

    parameters: int
    trained: int  # parameters
    experts: int  # parameters that are in experts
    expert_share: float  # of the experts that a token uses
    weight_bytes: int
    trained_bytes: int
    layer_bytes: int  # of the largest layer
    outside_bytes: int  # embeddings and all else that is in no layer
    activation_bytes: int  # kept for the backward of one micro-batch

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Sizes:
        return cls(**found)

    @property
    def active(self) -> int:
        """Parameters that one token uses."""
        return self.parameters - round(self.experts * (1 - self.expert_share))


def memory_per_rank(recipe: Recipe, sizes: Sizes) -> dict[str, int]:
    """Bytes by what they are for, at the peak of a step."""
    parts = recipe.world if recipe.sharded else 1
    computed = 2 if recipe.train.autocast else 4 if recipe.model.dtype == "float32" else 2
    stored = 4 if recipe.model.dtype == "float32" else 2
    found = {
        "weights": sizes.weight_bytes // parts,
        "gradients": sizes.trained_bytes // parts,
        "AdamW": 2 * sizes.trained_bytes // parts,
        "activations": sizes.activation_bytes,
    }
    if has_reference(recipe):
        found["reference"] = sizes.weight_bytes // parts
    if recipe.sharded:
        # FSDP2 has two layers together while it fetches the next one, and the root, which stays; in the backward also
        # the gradients of a layer before they are divided.
        whole = 2 * sizes.layer_bytes + sizes.outside_bytes
        trained = sizes.layer_bytes if sizes.trained == sizes.parameters else 0
        found["whole layers"] = (whole + trained) * computed // stored
    elif recipe.train.autocast:
        found["copies for autocast"] = sizes.weight_bytes // stored * computed
    return found


def has_reference(recipe: Recipe) -> bool:
    """Whether a frozen copy of the model is kept beside it."""
    return recipe.kind == "dpo" and recipe.lora.rank == 0


def nodes_that_fit(recipe: Recipe, sizes: Sizes) -> int:
    """The smallest power of two of nodes on which a sharded recipe fits; 0: none up to 4096."""
    nodes = 1
    while nodes <= 4096:
        larger = replace(recipe, job=replace(recipe.job, nodes=nodes))
        if sum(memory_per_rank(larger, sizes).values()) <= recipe.job.device_gib * GIB:
            return nodes
        nodes *= 2
    return 0


def host_memory_per_node(recipe: Recipe, sizes: Sizes) -> dict[str, int]:
    """Bytes of main memory."""
    processes = recipe.job.ranks + recipe.job.spares
    found = {f"models of {processes} processes, while they are built": processes * sizes.weight_bytes}
    if recipe.sharded:
        shard = 2 * sizes.trained_bytes + sizes.weight_bytes * (2 if has_reference(recipe) else 1)
        copies = min(recipe.job.copies, recipe.job.nodes)
        found["keepstep's copies of shards"] = 2 * copies * recipe.job.ranks * shard // recipe.world
    return found


def describe(recipe: Recipe, sizes: Sizes) -> str:
    """The plan as text."""
    job, rank = recipe.job, memory_per_rank(recipe, sizes)
    lines = [f"parameters      {sizes.parameters:,}"]
    if sizes.experts:
        lines.append(f"  for a token   {sizes.active:,} (the others are in experts that it does not use)")
    if sizes.trained != sizes.parameters:
        lines.append(f"  trained       {sizes.trained:,}")
    where = "machine" if job.nodes == 1 else f"{job.nodes} nodes"
    how = "each rank has a part of every layer (FSDP2)" if recipe.sharded else "each rank has the whole model (DDP)"
    lines.append(f"parallel        {recipe.world} ranks on {'one ' if job.nodes == 1 else ''}{where}; {how}")
    micro = recipe.train.global_batch // recipe.train.micro_batch
    tokens = recipe.train.global_batch * recipe.data.sequence_length * (2 if recipe.kind == "dpo" else 1)
    lines.append(
        f"a step          {tokens:,} tokens in {micro} micro-batches, up to {-(-micro // recipe.world)} for a rank"
    )
    total = sum(rank.values())
    device = "GPU" if job.device == "cuda" else "main memory"
    lines.append(f"a rank          {_gib(total)} of {device}")
    lines += [f"  {name:<22}{_gib(size)}" for name, size in rank.items()]
    host = host_memory_per_node(recipe, sizes)
    lines.append("a node          of main memory" + (", beside that" if job.device == "cpu" else ""))
    lines += [f"  {_gib(size):<14}{name}" for name, size in host.items()]
    lines += ["", *verdict(recipe, sizes)]
    return "\n".join(lines) + "\n"


def verdict(recipe: Recipe, sizes: Sizes) -> list[str]:
    """Whether it fits, and what keepstep cannot do."""
    total, job = sum(memory_per_rank(recipe, sizes).values()), recipe.job
    says = []
    if job.device == "cpu":
        says.append(f"All ranks of a node take {_gib(total * job.ranks)}.")
    elif total <= job.device_gib * GIB:
        says.append(f"By these numbers it fits into GPUs of {job.device_gib:g} GiB. It has not been run.")
    elif not recipe.sharded:
        says.append(f"It does not fit into GPUs of {job.device_gib:g} GiB: the model has to be sharded.")
    elif nodes := nodes_that_fit(recipe, sizes):
        says.append(f"It does not fit into GPUs of {job.device_gib:g} GiB; by these numbers it does on {nodes} nodes.")
    else:
        says.append(
            f"It does not fit into GPUs of {job.device_gib:g} GiB, on however many nodes: it needs tensor or expert "
            "parallelism, which recipes do not have."
        )
    if recipe.sharded and job.device == "cuda":
        says.append("keepstep cannot shard state on GPUs yet, so `keepstep recipe run` refuses this recipe.")
    if sizes.experts:
        says.append(
            "Experts are not spread over ranks (no expert parallelism): each rank computes all that its tokens need."
        )
    says.append("Activations are those of attention that keeps no scores, without what the allocator wastes.")
    return says


def _gib(size: int) -> str:
    return f"{size / GIB:,.1f} GiB" if size >= GIB / 10 else f"{size / (1 << 20):,.1f} MiB"
