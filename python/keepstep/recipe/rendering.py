"""A recipe as YAML, with what each key means; the same when it is read again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from keepstep.recipe.settings import Recipe

_PLAIN = re.compile(r"[A-Za-z_./][\w./-]*")
_WORDS_OF_YAML = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}
_COLUMN = 44  # where comments begin


def render(recipe: Recipe) -> str:
    return "\n".join(_lines(recipe, recipe.kind, 0)) + "\n"


def _lines(section: Any, kind: str, depth: int) -> Iterator[str]:
    for each in fields(section):
        only = each.metadata.get("only", ())
        if only and kind not in only:
            continue
        value, indent = getattr(section, each.name), "  " * depth
        if is_dataclass(value):
            yield f"{indent}{each.name}:"
            yield from _lines(value, kind, depth + 1)
        elif isinstance(value, dict) and value:
            yield f"{indent}{each.name}:".ljust(_COLUMN) + f"  # {each.metadata['says']}"
            yield from (f"{indent}  {name}: {scalar(one)}" for name, one in value.items())
        else:
            yield f"{indent}{each.name}: {scalar(value)}".ljust(_COLUMN) + f"  # {each.metadata['says']}"


def scalar(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, float):
        mantissa, e, exponent = repr(value).partition("e")
        return mantissa + ("" if "." in mantissa or not e else ".0") + e + exponent
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) and value.lower() not in _WORDS_OF_YAML else json.dumps(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {scalar(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(scalar, value)) + "]"
    return str(value)
