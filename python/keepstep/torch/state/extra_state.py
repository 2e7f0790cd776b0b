"""What modules return from ``get_extra_state``, as JSON: numbers, strings, tensors, bytes and containers of these."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from keepstep._errors import KeepstepError
from keepstep.torch.state import carried
from keepstep.torch.tensors.memory import raw_bytes


def modules_with_extra_state(root: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """The submodules of `root`, by path, that have extra state and can set it."""
    for path, module in root.named_modules():
        if type(module).get_extra_state is not torch.nn.Module.get_extra_state:
            yield path, module


def named(objects: Mapping[str, object]) -> list[tuple[str, torch.nn.Module]]:
    """The same for all modules in `objects`."""
    return [
        (f"{owner}/{path}", module)
        for owner, item in objects.items()
        if isinstance(item, torch.nn.Module)
        for path, module in modules_with_extra_state(item)
    ]


def encoded(name: str, value: Any) -> Any:
    """`value` for JSON; `decoded` restores it bit for bit. `name` is for the error."""
    if isinstance(value, torch.Tensor):
        [held] = raw_bytes([value])
        dtype = str(value.dtype).removeprefix("torch.")
        return {"__tensor__": [dtype, list(value.shape), str(value.device), base64.b64encode(held).decode()]}
    if isinstance(value, (bytes, bytearray)):
        return {"__bytes__": base64.b64encode(value).decode()}
    if isinstance(value, io.BytesIO):
        return {"__stream__": base64.b64encode(value.getvalue()).decode()}
    if isinstance(value, (list, tuple)):
        items = [encoded(f"{name}[{index}]", item) for index, item in enumerate(value)]
        return items if isinstance(value, list) else {"__tuple__": items}
    if isinstance(value, dict):
        return {
            "__dict__": [
                [carried.without_tensors(name, key), encoded(f"{name}.{key}", item)] for key, item in value.items()
            ]
        }
    return carried.without_tensors(name, value)


def decoded(value: Any) -> Any:
    """What was `encoded`."""
    if isinstance(value, list):
        return [decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    [(kind, held)] = value.items()
    if kind == "__float__":
        return float(held)
    if kind == "__tuple__":
        return tuple(decoded(item) for item in held)
    if kind == "__dict__":
        return {decoded(key): decoded(item) for key, item in held}
    if kind == "__bytes__":
        return base64.b64decode(held)
    if kind == "__stream__":
        return io.BytesIO(base64.b64decode(held))
    if kind != "__tensor__":
        raise KeepstepError(f"extra state holds '{kind}', which this version does not know")
    dtype, shape, device, text = held
    raw = bytearray(base64.b64decode(text))
    flat = torch.frombuffer(raw, dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8)
    return flat.view(getattr(torch, dtype)).reshape(shape).clone().to(device)


def take(modules: Iterable[tuple[str, torch.nn.Module]]) -> dict[str, Any]:
    """The current extra state of each module, by name."""
    return {name: encoded(f"{name} (get_extra_state)", module.get_extra_state()) for name, module in modules}


def put_back(modules: Iterable[tuple[str, torch.nn.Module]], taken: Mapping[str, Any]) -> None:
    """They return what was `taken` again."""
    now = take(modules)
    for name, module in modules:
        if now[name] != taken[name]:
            module.set_extra_state(decoded(taken[name]))
