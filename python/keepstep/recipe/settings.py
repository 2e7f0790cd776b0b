"""What a recipe can say: its keys, their types, defaults, meanings and limits. Everything else reads it from here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

# Returns what is wrong with a value, or "".
Check = Callable[[Any], str]


def key(default: Any, says: str, *checks: Check, only: str = "") -> Any:
    """A key of a recipe. `only`: the kinds of training that have it, separated by spaces; all if empty."""
    about = {"says": says, "checks": checks, "only": tuple(only.split())}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: type(default)(default), metadata=about)
    return field(default=default, metadata=about)


def at_least(least: float) -> Check:
    return lambda value: "" if value >= least else f"has to be at least {least:g}"


def above(least: float) -> Check:
    return lambda value: "" if value > least else f"has to be above {least:g}"


def below(most: float) -> Check:
    return lambda value: "" if value < most else f"has to be below {most:g}"


def one_of(*names: str) -> Check:
    return lambda value: "" if value in names else f"has to be one of {', '.join(names)}"


@dataclass(frozen=True)
class Model:
    type: str = key("", "transformers' model_type, such as llama")
    shape: dict[str, Any] = key({}, "arguments of its configuration")
    source: str = key("", "where the shape is from")
    parameters: int = key(0, "how many it has, for `keepstep recipe list`; a test counts them", at_least(0))
    path: str = key("", "folder with the weights and config.json to begin with; empty: random weights of this shape")
    dtype: str = key("float32", "of the weights: float32 or bfloat16", one_of("float32", "bfloat16"))
    recompute: bool = key(False, "keep only the inputs of layers, and compute the rest again in the backward")


@dataclass(frozen=True)
class Data:
    input: list[str] = key(
        [],
        "what the corpus is built from: JSON lines, Arrow, Parquet, folders that Hugging Face's datasets saved; "
        "'sample': a few lines to try the recipe with",
    )
    corpus: str = key("", "prefix of a corpus that `keepstep data` built; empty: OUT/corpus, built from `input`")
    tokenizer: str = key("bytes", "tokenizer.json that the corpus is built with, or bytes")
    end_of_document: str = key("", "token after each document, if the tokenizer has several that may be it")
    field: str = key("text", "column or JSON field with the text", only="pretrain continue")
    sequence_length: int = key(2048, "tokens of a sample", at_least(8))


@dataclass(frozen=True)
class Train:
    steps: int = key(1000, "number of the last step", at_least(1))
    global_batch: int = key(64, "samples of a step, over all ranks; with dpo pairs", at_least(1))
    micro_batch: int = key(1, "samples of one forward; divides global_batch", at_least(1))
    learning_rate: float = key(
        1e-4, "its highest value; it rises in a line, then falls to a tenth in a cosine", above(0)
    )
    warmup_steps: int = key(50, "steps until the highest learning rate", at_least(0))
    weight_decay: float = key(0.1, "of AdamW, for matrices", at_least(0))
    clip: float = key(1.0, "limit of the norm of the gradients", above(0))
    router_loss: float = key(
        0.001,
        "weight of the loss that balances experts, in models that compute one",
        at_least(0),
        only="pretrain continue",
    )
    autocast: bool = key(False, "compute in bfloat16 where torch.autocast does")


@dataclass(frozen=True)
class Lora:
    rank: int = key(16, "of the adapters; 0, in dpo only: train the whole model", at_least(0))
    alpha: int = key(32, "scale of the adapters", at_least(1))
    dropout: float = key(0.0, "on their inputs", at_least(0), below(1))
    targets: str = key("all-linear", "which layers: all-linear, or their names separated by commas")


@dataclass(frozen=True)
class Dpo:
    beta: float = key(0.1, "how closely the model stays to the one it began as", above(0))


@dataclass(frozen=True)
class Job:
    device: str = key("cuda", "cpu or cuda", one_of("cpu", "cuda"))
    nodes: int = key(1, "machines; start the same command on each", at_least(1))
    ranks: int = key(8, "ranks on each node; with cuda one for each GPU", at_least(1))
    spares: int = key(1, "standby processes on each node, which replace ranks that die", at_least(0))
    elastic: int = key(
        0,
        "smallest number of nodes (on one node: of ranks) that the job goes on with; 0: its size is fixed",
        at_least(0),
    )
    parallel: str = key(
        "ddp", "ddp: each rank has the whole model; fsdp: a part of it (CPUs only so far)", one_of("ddp", "fsdp")
    )
    copies: int = key(2, "with fsdp: nodes that hold a copy of each shard", at_least(1))
    checkpoint_every: int = key(100, "steps between two checkpoints in OUT/checkpoints", at_least(1))
    keep: int = key(2, "checkpoints that stay", at_least(1))
    seed: int = key(0, "of the job's random numbers", at_least(0))
    device_gib: float = key(80.0, "memory of a GPU, for the plan", above(0))


@dataclass(frozen=True)
class Recipe:
    recipe: str = key("", "the recipe that this one is based on; it has what is not said here")
    script: str = key("", "training script, from this file's folder; empty: keepstep's own")
    out: str = key("", "folder for all that the job writes; empty: out/NAME")
    model: Model = field(default_factory=Model)
    data: Data = field(default_factory=Data)
    train: Train = field(default_factory=Train)
    lora: Lora = field(default_factory=Lora, metadata={"only": ("lora", "dpo")})
    dpo: Dpo = field(default_factory=Dpo, metadata={"only": ("dpo",)})
    job: Job = field(default_factory=Job)

    @property
    def kind(self) -> str:
        return self.recipe.rpartition("/")[2]

    @property
    def corpus(self) -> str:
        return self.data.corpus or f"{self.out}/corpus"

    @property
    def world(self) -> int:
        return self.job.nodes * self.job.ranks

    @property
    def sharded(self) -> bool:
        return self.job.parallel == "fsdp"
