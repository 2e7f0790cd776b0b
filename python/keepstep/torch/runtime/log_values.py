"""What ``step.log`` was given, as JSON text: written here because ``json.dumps`` takes several times as long."""

from __future__ import annotations

import math
from json.encoder import encode_basestring_ascii
from typing import Any

import torch

from keepstep._errors import KeepstepError


def object_text(values: dict[str, Any]) -> str:
    """A JSON object, ASCII only. Tensors become numbers and lists; numbers that JSON lacks (nan, inf) become text.

    Raises KeepstepError for what is no number, string, list or dict of them.
    """
    return "{" + ", ".join([f"{_text(name)}: {_value(name, value)}" for name, value in values.items()]) + "}"


def _text(value: str) -> str:
    if not value.isascii():
        # What is half a character becomes U+FFFD: UTF-8 has no bytes for it.
        value = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return encode_basestring_ascii(value)


def _value(name: str, value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return float.__repr__(value) if math.isfinite(value) else f'"{float.__repr__(value)}"'
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, torch.Tensor):
        return _value(name, value.tolist())
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join([_value(name, item) for item in value]) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join([f"{_text(str(key))}: {_value(name, item)}" for key, item in value.items()]) + "}"
    raise KeepstepError(
        f"step.log: '{name}' is a {type(value).__qualname__}; a number, a string, or lists and dicts of them are needed"
    )
