"""YAML files and key=value arguments as a `Recipe`, with every mistake and its place."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, cast, get_type_hints

from keepstep._yaml import Field, YamlError, documents
from keepstep.recipe.settings import Recipe

EXTRA = "recipe"
_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


class RecipeError(Exception):
    """A recipe that cannot be used; `mistakes` are complete lines, in the order of their places."""

    def __init__(self, *mistakes: str) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = mistakes


@dataclass(frozen=True)
class Layer:
    """Part of a recipe: a map of keys. Later layers win. `ours`: comes with keepstep, so may say too much."""

    name: str  # of the file, or the argument
    root: Field
    ours: bool = False
    argument: bool = False

    def place(self, line: int) -> str:
        return self.name if self.argument else f"{self.name}:{line}"


def layer_of_file(path: Path, name: str) -> Layer:
    """Raises RecipeError."""
    try:
        return Layer(name, _only_map(path.read_text(encoding="utf-8")))
    except YamlError as error:
        raise RecipeError(f"{name}: {error}") from None
    except UnicodeDecodeError:
        raise RecipeError(f"{name}: this is no text; give a YAML file") from None
    except OSError as error:
        raise RecipeError(f"{name}: {error.strerror}") from None


def _only_map(text: str) -> Field:
    found = documents(text, EXTRA)
    if len(found) != 1:
        raise YamlError(f"has {len(found)} maps of keys at its top; one is needed, such as `recipe: llama3-8b/lora`")
    return found[0]


def layer_of_argument(argument: str) -> Layer:
    """Of section.key=value. Raises RecipeError."""
    path, equals, value = argument.partition("=")
    keys = path.split(".")
    if not equals or not all(keys):
        raise RecipeError(f"{argument}: is no section.key=value, such as train.steps=500")
    text = "".join(f"{'  ' * depth}{name}:\n" for depth, name in enumerate(keys))
    try:
        return Layer(argument, _only_map(f"{text[:-1]} {value}\n"), argument=True)
    except YamlError as error:
        if "PyYAML" in str(error):
            raise RecipeError(str(error)) from None
        raise RecipeError(f"{argument}: '{value}' is no value; put a text with special characters in quotes") from None


def compose(layers: Sequence[Layer], kind: str) -> Recipe:
    """Raises RecipeError with all mistakes. `kind`: of training, such as lora."""
    reader = _Reader(kind)
    recipe = cast(Recipe, reader.section(Recipe, [(layer, layer.root) for layer in layers], ""))
    if not reader.mistakes:
        reader.compare(recipe)
    if reader.mistakes:
        order = {layer.name: number for number, layer in enumerate(layers)}
        raise RecipeError(
            *(text for _, _, text in sorted((order[name], line, text) for name, line, text in reader.mistakes))
        )
    return recipe


class _Reader:
    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.mistakes: list[tuple[str, int, str]] = []
        self._places: dict[str, tuple[Layer, int]] = {}  # of each key's last value

    def wrong(self, layer: Layer, line: int, text: str) -> None:
        self.mistakes.append((layer.name, line, f"{layer.place(line)}: {text}"))

    def section(self, cls: type[Any], found: Sequence[tuple[Layer, Field]], path: str) -> Any:
        """An instance of the dataclass `cls`, from maps of which later ones win."""
        known = {each.name: each for each in fields(cls)}
        types = get_type_hints(cls)
        values: dict[str, list[tuple[Layer, Field]]] = {}
        for layer, map_of in found:
            if map_of.kind != "mapping":
                if map_of.kind != "null":
                    self.wrong(
                        layer, map_of.line, f"{path}: a map of keys is needed, such as {path}.{next(iter(known))}"
                    )
                continue
            for name, line, value in self._once(layer, map_of):
                where = f"{path}.{name}".lstrip(".")
                if name not in known:
                    self.wrong(layer, line, f"{where}: there is no such key{_meant(name, path, known)}")
                elif (only := known[name].metadata.get("only", ())) and self._kind not in only:
                    if not layer.ours:
                        self.wrong(layer, line, f"{where}: only recipes of {', '.join(only)} have it, not {self._kind}")
                elif name == "shape":
                    of = values.setdefault(name, [])
                    if map_of.get("type") is not None:
                        of.clear()  # another architecture
                    of.append((layer, value))
                elif is_dataclass(types[name]):
                    values.setdefault(name, []).append((layer, value))
                else:
                    values[name] = [(layer, value)]
                    self._places[where] = (layer, line)
        given: dict[str, Any] = {}
        for name, of in values.items():
            where = f"{path}.{name}".lstrip(".")
            if is_dataclass(types[name]):
                given[name] = self.section(cast(type[Any], types[name]), of, where)
            elif name == "shape":
                given[name] = self._shape(of, where)
            else:
                layer, value = of[-1]
                given[name] = self._value(layer, value, types[name], known[name].metadata["checks"], where)
        return cls(**{name: value for name, value in given.items() if value is not None})

    def _once(self, layer: Layer, map_of: Field) -> Iterator[tuple[str, int, Field]]:
        seen: dict[str, int] = {}
        for name, line, value in map_of.fields():
            if name in seen:
                self.wrong(layer, line, f"{value.path}: is there already, in line {seen[name]}")
            seen[name] = line
            yield name, line, value

    def _shape(self, of: Iterable[tuple[Layer, Field]], where: str) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for layer, value in of:
            if value.kind != "mapping":
                self.wrong(layer, value.line, f"{where}: a map is needed, such as {where}.num_hidden_layers")
                continue
            for name, line, each in self._once(layer, value):
                merged[name] = each.plain()
                self._places[f"{where}.{name}"] = (layer, line)
        return merged

    def _value(self, layer: Layer, value: Field, kind: Any, checks: Iterable[Any], where: str) -> Any:
        """None if it is wrong, or null: the default then counts."""
        if value.kind == "null":
            return None
        try:
            read = _read(value, kind)
        except ValueError as error:
            self.wrong(layer, value.line, f"{where}: {error}")
            return None
        for check in checks:
            if says := check(read):
                self.wrong(layer, value.line, f"{where}: is {value.scalar()}; it {says}")
        return read

    def compare(self, recipe: Recipe) -> None:
        """What does not fit together."""
        train, job = recipe.train, recipe.job
        micro_batches = train.global_batch // train.micro_batch
        if train.global_batch % train.micro_batch:
            self._at(
                "train.micro_batch",
                f"is {train.micro_batch}, which does not divide train.global_batch={train.global_batch}",
            )
        elif micro_batches < recipe.world:
            self._at(
                "train.global_batch",
                f"is {train.global_batch}: {micro_batches} micro-batches of {train.micro_batch} for {recipe.world} "
                "ranks; each rank needs one",
            )
        if train.warmup_steps > train.steps:
            self._at("train.warmup_steps", f"is {train.warmup_steps}, more than train.steps={train.steps}")
        most, of = (job.nodes, "job.nodes") if job.nodes > 1 else (job.ranks, "job.ranks")
        if job.elastic > most:
            self._at("job.elastic", f"is {job.elastic}, more than {of}={most}")
        if self._kind == "lora" and recipe.lora.rank == 0:
            self._at("lora.rank", "is 0; to train the whole model, take the recipe finetune")
        if not recipe.model.type and not recipe.model.path:
            self._at("model.type", "neither model.type nor model.path is given")

    def _at(self, where: str, says: str) -> None:
        layer, line = self._places.get(where) or next(iter(self._places.values()))
        self.wrong(layer, line, f"{where}: {says}")


def _read(value: Field, kind: Any) -> Any:
    if kind == list[str]:
        if value.kind == "scalar":
            return [value.scalar()]
        if value.kind != "sequence":
            raise ValueError("a list of texts is needed")
        if any(each.kind != "scalar" for each in value.items()):
            raise ValueError("each entry of the list has to be a text")
        return [each.scalar() for each in value.items()]
    if value.kind != "scalar":
        raise ValueError(f"{_KINDS[kind]} is needed, not a {'list' if value.kind == 'sequence' else 'map'}")
    text = value.scalar()
    if kind is str:
        return text
    try:
        if value.quoted:
            raise ValueError
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        return kind(text.replace("_", ""))
    except (ValueError, KeyError):
        raise ValueError(f"'{text}' is not {_KINDS[kind]}") from None


def _meant(name: str, path: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), 1)
    if near:
        return f"; did you mean {f'{path}.{near[0]}'.lstrip('.')}?"
    sections = {each.name: get_type_hints(Recipe)[each.name] for each in fields(Recipe)}
    for section, cls in sections.items():
        if is_dataclass(cls) and name in {each.name for each in fields(cls)}:
            return f"; did you mean {section}.{name}?"
    return f"; {path or 'a recipe'} has {', '.join(known)}"
