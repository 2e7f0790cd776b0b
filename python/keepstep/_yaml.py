"""YAML whose values know their lines."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


class YamlError(Exception):
    """A file is no YAML, or a value in it has another kind than its reader needs. The text says where."""


class Field:
    """A value in a YAML file, and where it stands."""

    def __init__(self, node: Any, path: str) -> None:
        self._node, self.path = node, path

    @property
    def line(self) -> int:
        return int(self._node.start_mark.line) + 1

    @property
    def first_line(self) -> int:
        """Of its text; that of a block begins below its sign."""
        return self.line + (self._node.style in ("|", ">"))

    def _pairs(self) -> list[tuple[str, Any]]:
        if self._node.id != "mapping":
            raise YamlError(f"line {self.line}: {self.path} has to be a map of names and values")
        return [(str(key.value), value) for key, value in self._node.value]

    def keys(self) -> set[str]:
        return {key for key, _ in self._pairs()}

    def fields(self) -> list[tuple[str, int, Field]]:
        """Of a map, in its order: each key, its line and its value. A key that is there twice comes twice."""
        self._pairs()
        return [
            (str(key.value), int(key.start_mark.line) + 1, Field(value, f"{self.path}.{key.value}".lstrip(".")))
            for key, value in self._node.value
        ]

    @property
    def kind(self) -> str:
        """One of: null, scalar, sequence, mapping."""
        return "null" if self._node.tag == "tag:yaml.org,2002:null" else str(self._node.id)

    @property
    def quoted(self) -> bool:
        """Whether it is a text in quotes."""
        return self._node.id == "scalar" and self._node.style in ("'", '"')

    def plain(self) -> Any:
        """As Python's numbers, texts, lists and dicts. 1e-4 is a number, as in other languages."""
        if self._node.id == "mapping":
            return {name: field.plain() for name, _, field in self.fields()}
        if self._node.id == "sequence":
            return [each.plain() for each in self.items()]
        name = self._node.tag.rpartition(":")[2]
        text = str(self._node.value)
        if name == "null":
            return None
        if name == "bool":
            return text.lower() in ("true", "yes", "on")
        if not self.quoted:
            for convert in (int, float):
                with contextlib.suppress(ValueError):
                    return convert(text.replace("_", "") if name == "int" else text)
        return text

    def get(self, key: str) -> Field | None:
        """None if there is no such key, or null after it."""
        for name, value in self._pairs():
            if name == key and value.tag != "tag:yaml.org,2002:null":
                return Field(value, f"{self.path}.{key}".lstrip("."))
        return None

    def at(self, *keys: str) -> Field | None:
        found: Field | None = self
        for key in keys:
            found = found.get(key) if found else None
        return found

    def items(self) -> Iterator[Field]:
        """Of a list."""
        if self._node.id != "sequence":
            raise YamlError(f"line {self.line}: {self.path} has to be a list")
        for index, node in enumerate(self._node.value):
            yield Field(node, f"{self.path}[{index}]")

    def scalar(self) -> str:
        """The text of a plain value, as written."""
        if self._node.id != "scalar":
            raise YamlError(f"line {self.line}: {self.path} has to be one value")
        return str(self._node.value)

    def text(self, key: str) -> str:
        """Of a plain value in this map; "" without it."""
        found = self.get(key)
        return found.scalar() if found else ""

    def number(self, key: str, default: int) -> int:
        found = self.get(key)
        if found is None:
            return default
        if not found.scalar().isdigit():
            raise YamlError(f"line {found.line}: {found.path} is '{found.scalar()}'; a whole number is needed")
        return int(found.scalar())


def documents(text: str, extra: str) -> list[Field]:
    """The maps at the top of `text`. `extra`: the extra of keepstep that has PyYAML.

    Raises YamlError if it is no YAML, or PyYAML is not installed.
    """
    try:
        import yaml
    except ImportError:
        raise YamlError(f"PyYAML is needed to read YAML: pip install 'keepstep[{extra}]'") from None
    try:
        return [Field(node, "") for node in yaml.compose_all(text, yaml.SafeLoader) if node.id == "mapping"]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        raise YamlError(f"{where}this is no YAML: {getattr(error, 'problem', error)}") from None
