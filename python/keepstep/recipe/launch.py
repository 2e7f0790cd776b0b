"""The commands that a recipe stands for: `keepstep data`, which builds its corpus, and `keepstep run`."""

from __future__ import annotations

import importlib.util
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from keepstep.recipe import sample
from keepstep.recipe.reading import RecipeError
from keepstep.recipe.settings import Recipe

SAMPLE = "sample"


@dataclass(frozen=True)
class Launch:
    """`build` is empty if the corpus is there. Commands begin with `keepstep`."""

    build: list[str]
    run: list[str]


def prepare(recipe: Recipe, script: Path, options: Sequence[str]) -> Launch:
    """Checks what the job needs, and writes nothing. `options`: more of `keepstep run`. Raises RecipeError."""
    mistakes = [*_missing_packages(recipe), *_model(recipe), *_cannot(recipe)]
    build: list[str] = []
    try:
        build = _build(recipe)
    except RecipeError as error:
        mistakes += error.mistakes
    if not script.is_file():
        mistakes.append(f"script: there is no file {script}")
    if mistakes:
        raise RecipeError(*mistakes)
    return Launch(build, [*_run(recipe), *options, str(script), f"{recipe.out}/recipe.yaml"])


def write_sample(recipe: Recipe) -> None:
    if SAMPLE in recipe.data.input:
        path = Path(_sample(recipe))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(sample.lines(recipe.kind))


def shown(command: Sequence[str]) -> str:
    return shlex.join(command)


def _missing_packages(recipe: Recipe) -> list[str]:
    needed = {"torch": "torch", "transformers": "transformers"}
    if recipe.kind in ("lora", "dpo"):
        needed["peft"] = "peft"
    missing = [name for name, package in needed.items() if importlib.util.find_spec(package) is None]
    return [f"{', '.join(missing)}: not installed; pip install 'keepstep[recipe]'"] if missing else []


def _model(recipe: Recipe) -> list[str]:
    path = recipe.model.path
    if not path or (Path(path) / "config.json").is_file():
        return []
    name, _, _ = recipe.recipe.partition("/")
    hint = f"; `keepstep recipe run {name}/pretrain` makes one" if path == f"out/{name}/pretrain/model" else ""
    what = "has no config.json" if Path(path).is_dir() else "is no folder"
    return [
        f"model.path: {path} {what} (seen from {os.getcwd()}); it has to be a model in the format of transformers, "
        f"the same on all nodes{hint}"
    ]


def _cannot(recipe: Recipe) -> list[str]:
    if recipe.sharded and recipe.job.device == "cuda":
        return [
            f"job.parallel: fsdp on GPUs is not possible yet (docs/limits.md), so {recipe.recipe} is a plan: "
            f"`keepstep recipe show --plan {recipe.recipe}`. On CPUs: job.device=cpu"
        ]
    return []


def _sample(recipe: Recipe) -> str:
    return f"{recipe.out}/sample.jsonl"


def _inputs(recipe: Recipe) -> list[str]:
    """Patterns for `keepstep data`."""
    found = []
    for text in recipe.data.input:
        if text == SAMPLE:
            found.append(_sample(recipe))
        elif (Path(text) / "state.json").is_file():  # what datasets' save_to_disk wrote
            found.append(f"{text}/*.arrow")
        elif (Path(text) / "dataset_dict.json").is_file():
            parts = sorted(path.parent.name for path in Path(text).glob("*/state.json"))
            names = ", ".join(f"{text}/{each}" for each in parts)
            raise RecipeError(f"data.input: {text} has several data sets; choose one: {names}")
        elif any(character in text for character in "*?[") or Path(text).exists():
            found.append(text)
        else:
            raise RecipeError(f"data.input: there is no {text} (seen from {os.getcwd()})")
    return found


def _build(recipe: Recipe) -> list[str]:
    """The command that builds the corpus; empty if it is there."""
    corpus, data = recipe.corpus, recipe.data
    kind = {"finetune": "chat", "lora": "chat", "dpo": "chat --pairs"}.get(recipe.kind, "build")
    if Path(f"{corpus}.idx").exists() and Path(f"{corpus}.bin").exists():
        if data.input and built_by(corpus) not in ("", shown(_command(recipe, kind))):
            raise RecipeError(
                f"data: {corpus}.bin was built by another command ({built_by(corpus)}); choose another `out`, or "
                f"remove {corpus}.*"
            )
        return []
    if not data.input:
        where = f"data.corpus: there is no {corpus}.bin" if data.corpus else "data.input: is missing"
        raise RecipeError(
            f"{where}; say what to build the corpus from (data.input), or build it with `keepstep data {kind}`"
        )
    if data.tokenizer != "bytes" and not Path(data.tokenizer).is_file():
        raise RecipeError(f"data.tokenizer: there is no file {data.tokenizer}; give a tokenizer.json, or bytes")
    command = _command(recipe, kind)
    if recipe.job.nodes > 1:
        raise RecipeError(
            f"data.corpus: there is no {corpus}.bin. With several nodes build it first, where all of them find it: "
            f"{shown(command)}"
        )
    return command


def _command(recipe: Recipe, kind: str) -> list[str]:
    data = recipe.data
    command = ["keepstep", "data", *kind.split(), "--input", *_inputs(recipe), "--out", recipe.corpus]
    command += ["--tokenizer", data.tokenizer, "--append-eod"]
    if data.end_of_document:
        command += ["--eod", data.end_of_document]
    if kind == "build" and data.field != "text":
        command += ["--field", data.field]
    return command


def built_by(corpus: str) -> str:
    """The command that built it, if a recipe did; otherwise empty."""
    path = _record(corpus)
    return path.read_text().rstrip("\n") if path.exists() else ""


def record(recipe: Recipe, command: Sequence[str]) -> None:
    """Keeps the command beside the corpus that it has built."""
    _record(recipe.corpus).write_text(f"{shown(command)}\n")


def _record(corpus: str) -> Path:
    return Path(f"{corpus}.command")


def _run(recipe: Recipe) -> list[str]:
    job = recipe.job
    command = [
        "keepstep",
        "run",
        "--nproc-per-node",
        str(job.ranks),
        "--spares",
        str(job.spares),
        "--seed",
        str(job.seed),
    ]
    if job.nodes > 1:
        command += ["--nnodes", f"{job.elastic}:{job.nodes}" if job.elastic else str(job.nodes)]
    elif job.elastic:
        command += ["--ranks-per-replica", "1", "--min-replicas", str(job.elastic), "--max-replicas", str(job.ranks)]
    return [*command, "--journal", _journal(recipe)]


def _journal(recipe: Recipe) -> str:
    """A folder that no earlier run of this recipe wrote to; with several nodes one name for all of them."""
    if recipe.job.nodes > 1:
        return f"{recipe.out}/journal"
    numbers = (f"{recipe.out}/journal{number}" for number in range(2, 1_000_000))
    folder = f"{recipe.out}/journal"
    while Path(folder, "journal.jsonl").exists():
        folder = next(numbers)
    return folder
