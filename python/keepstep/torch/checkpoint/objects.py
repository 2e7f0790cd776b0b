"""The non-tensors of a state dict: numbers, strings, lists of them. Stored as torch.save writes them, and loaded only
by torch's restricted unpickler (``weights_only``)."""

from __future__ import annotations

import io
import warnings

import torch

from keepstep._errors import KeepstepError


def _strangers(data: io.BytesIO) -> str:
    """The classes and functions in it that weights_only does not know; empty if they cannot be told."""
    try:
        data.seek(0)
        return ", ".join(sorted(torch.serialization.get_unsafe_globals_in_checkpoint(data)))
    except Exception:
        return ""


def _load(data: io.BytesIO) -> object:
    data.seek(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.load(data, map_location="cpu", weights_only=True)


def require_safe(name: str, data: io.BytesIO) -> None:
    """Raises KeepstepError unless what was saved as `name` can be loaded again without running anything."""
    try:
        _load(data)
    except Exception as error:
        strangers = _strangers(data)
        raise KeepstepError(
            f"'{name}' cannot be stored safely: it has {strangers or f'what torch.load refuses ({error})'}. A "
            "checkpoint holds tensors, numbers, texts, and lists, tuples and dicts of them; store what the object is "
            "made of, or name its class with torch.serialization.add_safe_globals where you save and where you load"
        ) from None
    finally:
        data.seek(0)


def made_safe(name: str, where: str, data: bytes) -> io.BytesIO:
    """The same object as bytes that are written here, for planners that unpickle anything.

    The strict unpickler loads the file; only its result is pickled again. KeepstepError: the file holds something that
    is refused.
    """
    try:
        loaded = _load(io.BytesIO(data))
    except Exception as error:
        strangers = _strangers(io.BytesIO(data))
        raise KeepstepError(
            f"{where}: '{name}' is not loaded: it has {strangers or f'what torch.load refuses ({error})'}, and pickles "
            "from outside are never run. If you trust its class, name it with torch.serialization.add_safe_globals"
        ) from None
    safe = io.BytesIO()
    torch.save(loaded, safe)
    safe.seek(0)
    return safe
