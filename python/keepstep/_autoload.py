"""Called by torch at the end of ``import torch`` (entry point ``torch.backends``); must stay cheap."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import import_module
from typing import Any


def after_import_of_torch() -> None:
    """Registers ``init_method="keepstep://"`` and, with ``KEEPSTEP_STORE=1``, makes our Store the one that torch's
    default rendezvous uses."""
    distributed = import_module("torch.distributed")
    if not distributed.is_available():
        return
    if os.environ.get("KEEPSTEP_STORE", "0") not in ("", "0"):
        import keepstep.torch  # noqa: F401
    else:
        # torch.distributed exports a function of the same name, so import the module by its path.
        import_module("torch.distributed.rendezvous")._rendezvous_handlers.setdefault("keepstep", _at_first_use)


def _at_first_use(url: str, **kwargs: Any) -> Iterator[Any]:
    import keepstep.torch  # noqa: F401

    handler = import_module("torch.distributed.rendezvous")._rendezvous_handlers["keepstep"]
    yield from handler(url, **kwargs)
