"""Called by torch at the end of ``import torch`` (entry point ``torch.backends``); must stay cheap."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import import_module
from typing import Any


def after_import_of_torch() -> None:
    """Makes ``init_method="keepstep://"`` known, and puts our Store under torch's default rendezvous where
    ``KEEPSTEP_STORE=1`` asks for it."""
    distributed = import_module("torch.distributed")
    if not distributed.is_available():
        return
    if os.environ.get("KEEPSTEP_STORE", "0") not in ("", "0"):
        import keepstep.torch  # noqa: F401
    else:
        # The package exports a function of the same name, so the module is asked for by its path.
        import_module("torch.distributed.rendezvous")._rendezvous_handlers.setdefault("keepstep", _at_first_use)


def _at_first_use(url: str, **kwargs: Any) -> Iterator[Any]:
    import keepstep.torch  # noqa: F401

    handler = import_module("torch.distributed.rendezvous")._rendezvous_handlers["keepstep"]
    yield from handler(url, **kwargs)
