"""``keepstep recipe``: training jobs for known models, each a page of Python and a YAML file, made to be copied.

usage: keepstep recipe list
       keepstep recipe show [--plan] NAME|-f FILE [section.key=value ...]
       keepstep recipe show --to FOLDER NAME|-f FILE [section.key=value ...]
       keepstep recipe run [--dry-run] NAME|-f FILE [section.key=value ...] [-- OPTIONS OF keepstep run]

list    all recipes: MODEL/KIND, where KIND is pretrain, continue, finetune, lora or dpo
show    the recipe as YAML with the meaning of each key, and its script
  --plan       parameters, memory of a rank and a node, whether it fits; computed without memory for the weights
  --to FOLDER  writes recipe.yaml and the script to FOLDER, to be changed; run them with -f FOLDER/recipe.yaml
run     builds the corpus if it is missing, then starts `keepstep run`; prints both commands
  --dry-run    only prints them

FILE is YAML: `recipe: NAME`, and what differs from that recipe. All mistakes in it are listed with their lines.

examples:
  keepstep recipe run llama3-tiny/lora
  keepstep recipe run llama3-tiny/lora job.elastic=1 -- --inject kill:rank=1,step=20,phase=backward
  keepstep recipe run qwen3-0.6b/finetune model.path=Qwen3-0.6B data.input=chats.jsonl job.ranks=2

Exit codes: those of `keepstep run`; 2: the recipe or the command is wrong.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

from keepstep._command import exit_with, keepstep_command
from keepstep.recipe import launch, library
from keepstep.recipe.plan import Sizes, describe
from keepstep.recipe.reading import RecipeError
from keepstep.recipe.rendering import render
from keepstep.recipe.settings import Recipe


@dataclass
class _Words:
    """The command line behind `show` and `run`."""

    name: str = ""
    file: Path | None = None
    arguments: list[str] = field(default_factory=list)
    flags: set[str] = field(default_factory=set)
    to: Path | None = None
    options: list[str] = field(default_factory=list)  # of keepstep run

    def recipe(self) -> Recipe:
        if not self.name and self.file is None:
            raise RecipeError("which recipe? Give a NAME or -f FILE; `keepstep recipe list` shows all")
        return library.load(self.name, self.file, self.arguments)

    def script(self, recipe: Recipe) -> Path:
        return library.script_of(recipe, self.file.parent if self.file else None)


def _words(arguments: list[str], flags: set[str]) -> _Words:
    found = _Words()
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--":
            found.options, rest = rest, []
        elif word in ("-f", "--file", "--to"):
            if not rest:
                raise RecipeError(f"{word}: a path is missing")
            if word == "--to":
                found.to = Path(rest.pop(0))
            else:
                found.file = Path(rest.pop(0))
        elif word in flags:
            found.flags.add(word)
        elif word.startswith("-"):
            raise RecipeError(f"unexpected '{word}'; options of `keepstep run` come after --")
        elif "=" in word:
            found.arguments.append(word)
        elif found.name:
            raise RecipeError(f"unexpected '{word}': the recipe is {found.name}; settings are section.key=value")
        else:
            found.name = word
    if found.name and found.file:
        raise RecipeError(f"{found.name}: give a NAME or -f FILE; the file says which recipe it is based on")
    return found


def _list() -> int:
    print(f"{'model':<18}{'parameters':<14}" + "".join(f"{kind:<10}" for kind in library.KINDS).rstrip())
    for model in library.models():
        recipes = {kind: library.load(f"{model}/{kind}") for kind in library.kinds_of(model)}
        count = next(iter(recipes.values())).model.parameters
        size = f"{count / 1e9:,.1f} billion" if count >= 1e8 else f"{count:,}"
        states = "".join(f"{_state(recipes[kind]) if kind in recipes else '-':<10}" for kind in library.KINDS)
        print(f"{model:<18}{size:<14}{states}".rstrip())
    print(
        "\ntested: on CPUs, with ranks killed. untried: meant for GPUs that each hold the whole model, and never run.\n"
        "plan: needs a model that is sharded over GPUs, which keepstep cannot do yet.\n"
        "The name of a recipe is MODEL/KIND: keepstep recipe show llama3-tiny/lora"
    )
    return 0


def _state(recipe: Recipe) -> str:
    if recipe.job.device == "cpu":
        return "tested"
    return "plan" if recipe.sharded else "untried"


def _show(arguments: list[str]) -> int:
    words = _words(arguments, {"--plan"})
    recipe = words.recipe()
    script = words.script(recipe)
    if words.to:
        return _copy(recipe, script, words.to)
    if "--plan" in words.flags:
        print(f"{recipe.recipe}: {recipe.model.source}\n")
        print(describe(recipe, _sizes(recipe)), end="")
        return 0
    print(render(recipe))
    print(f"# {script}\n{script.read_text()}", end="")
    return 0


def _copy(recipe: Recipe, script: Path, folder: Path) -> int:
    files = {"recipe.yaml", script.name, "parts.py"}
    there = sorted(name for name in files if (folder / name).exists())
    if there:
        raise RecipeError(f"--to {folder}: {', '.join(there)} would be overwritten; choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for source in {script, script.parent / "parts.py"}:
        if source.exists():
            shutil.copyfile(source, folder / source.name)
    (folder / "recipe.yaml").write_text(render(replace(recipe, script=script.name)))
    print(f"{folder}: wrote {', '.join(sorted(files))}. Start: keepstep recipe run -f {folder / 'recipe.yaml'}")
    return 0


def _sizes(recipe: Recipe) -> Sizes:
    """In a process of its own, because this one has no torch."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recipe.yaml"
        path.write_text(render(replace(recipe, script="")))
        done = subprocess.run(
            [sys.executable, str(library.SCRIPTS / "meta.py"), str(path)], capture_output=True, text=True, check=False
        )
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no message"]
        hint = "; pip install 'keepstep[recipe]'" if "ModuleNotFoundError" in said[-1] else ""
        raise RecipeError(f"the model cannot be measured on meta tensors: {said[-1]}{hint}")
    return Sizes.of(json.loads(done.stdout.splitlines()[-1]))


def _run(arguments: list[str]) -> int:
    words = _words(arguments, {"--dry-run"})
    recipe = words.recipe()
    script = words.script(recipe)
    commands = launch.prepare(recipe, script, words.options)
    for command in (commands.build, commands.run):
        if command:
            print(f"$ {launch.shown(command)}", file=sys.stderr)
    if "--dry-run" in words.flags:
        return 0
    Path(recipe.out).mkdir(parents=True, exist_ok=True)
    partial = Path(recipe.out) / f"recipe.{os.getpid()}.partial"
    partial.write_text(render(replace(recipe, script="")))
    os.replace(partial, Path(recipe.out) / "recipe.yaml")
    if commands.build:
        launch.write_sample(recipe)
        built = subprocess.run([sys.executable, "-m", "keepstep.data", *commands.build[2:]], check=False).returncode
        if built:
            return built
        launch.record(recipe, commands.build)
    program = keepstep_command()
    sys.stderr.flush()
    os.execv(program, [program, *commands.run[1:]])


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("--help", "-h"):
        print(__doc__, file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    command, rest = arguments[0], arguments[1:]
    known = {"show": _show, "run": _run}
    if {"--help", "-h"} & set(rest[: rest.index("--")] if "--" in rest else rest):
        print(__doc__)
        return 0
    try:
        if command == "list":
            if rest:
                raise RecipeError(f"unexpected '{rest[0]}'")
            return _list()
        if command not in known:
            raise RecipeError(f"there is no '{command}'; commands: list, show, run")
        return known[command](rest)
    except RecipeError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    exit_with(main)
