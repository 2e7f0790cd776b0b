"""The recipes that come with keepstep, by name: MODEL/KIND. Each is made of two files, `kinds/KIND.yaml` and
`models/MODEL.yaml`."""

from __future__ import annotations

import difflib
from dataclasses import replace
from functools import cache
from pathlib import Path

from keepstep.recipe.reading import Layer, RecipeError, compose, layer_of_argument, layer_of_file
from keepstep.recipe.settings import Recipe

_FOLDER = Path(__file__).parent
SCRIPTS = _FOLDER / "jobs"
# Kinds of training in the order in which they are shown, and the script of each.
KINDS = {
    "pretrain": "pretrain.py",
    "continue": "pretrain.py",
    "finetune": "finetune.py",
    "lora": "finetune.py",
    "dpo": "dpo.py",
}


def models() -> list[str]:
    return sorted(path.stem for path in (_FOLDER / "models").glob("*.yaml"))


def kinds_of(model: str) -> list[str]:
    known = _file("models", model).root.keys()
    return [kind for kind in KINDS if kind in known]


def names() -> list[str]:
    return [f"{model}/{kind}" for model in models() for kind in kinds_of(model)]


def load(name: str, file: Path | None = None, arguments: list[str] | None = None) -> Recipe:
    """The recipe `name`, changed by a file and by section.key=value. A file says itself which recipe it is based on.

    Raises RecipeError with all mistakes.
    """
    mistakes: list[str] = []
    mine: list[Layer] = []
    if file is not None:
        mine.append(layer_of_file(file, str(file)))
    for argument in arguments or []:
        try:
            mine.append(layer_of_argument(argument))
        except RecipeError as error:
            mistakes += error.mistakes
    for layer in mine:
        based = layer.root.get("recipe")
        if based is not None and based.kind == "scalar":
            if layer.argument:
                raise RecipeError(f"{layer.name}: name the recipe without `recipe=`")
            _check_name(based.scalar(), f"{layer.place(based.line)}: recipe: ")
            name = based.scalar()
    if not name:
        raise RecipeError(
            f"{file}:1: recipe: is missing; say which recipe this one is based on, such as llama3-8b/lora"
        )
    _check_name(name, "")
    model, _, kind = name.partition("/")
    of_model = _file("models", model)
    parts = [of_model.root.get("all"), of_model.root.get(kind)]
    ours = [_file("kinds", kind), *(Layer(of_model.name, each, ours=True) for each in parts if each)]
    try:
        recipe = compose([*ours, *mine], kind)
    except RecipeError as error:
        raise RecipeError(*error.mistakes, *mistakes) from None
    if mistakes:
        raise RecipeError(*mistakes)
    return replace(recipe, recipe=name, out=recipe.out or f"out/{name}")


def script_of(recipe: Recipe, folder: Path | None = None) -> Path:
    """The training script; `folder`: of the file that names one."""
    return (folder or Path()) / recipe.script if recipe.script else SCRIPTS / KINDS[recipe.kind]


@cache
def _file(folder: str, name: str) -> Layer:
    path = _FOLDER / folder / f"{name}.yaml"
    layer = layer_of_file(path, f"{folder}/{name}.yaml")
    return replace(layer, ours=True)


def _check_name(name: str, place: str) -> None:
    known = names()
    if name in known:
        return
    model, _, kind = name.partition("/")
    if model in models() and kind:
        raise RecipeError(f"{place}there is no recipe '{name}'; {model} has {', '.join(kinds_of(model))}")
    near = difflib.get_close_matches(name, known, 1, 0.4) or difflib.get_close_matches(model, models(), 1, 0.4)
    meant = f"; did you mean {near[0]}?" if near else ""
    raise RecipeError(f"{place}there is no recipe '{name}'{meant} `keepstep recipe list` shows all")
