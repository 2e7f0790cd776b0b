"""Collectives of a strategy: they belong to an entry. One that a fault cuts short returns zeros: the entry is left."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch

    from keepstep.torch.runtime.run import Run

R = TypeVar("R")


class Collectives:
    """In front of a strategy of Lightning, whose collectives it calls. Outside of an entry they do nothing.

    Attributes:
        run: of the entry that is under way; None outside of one.
    """

    run: Run | None = None
    _alone = False

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        if self._has_peers:
            self._whole(super().barrier, *args, **kwargs)  # type: ignore[misc]

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        return self._whole(super().broadcast, obj, src) if self._has_peers else obj  # type: ignore[misc]

    def all_gather(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if self._alone:
            return tensor.expand(self.world_size, *tensor.shape)  # type: ignore[attr-defined]
        return self._whole(super().all_gather, tensor, *args, **kwargs)  # type: ignore[misc]

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """What this process does in it, others may not do: nothing is asked of them."""
        self._alone = True
        try:
            yield
        finally:
            self._alone = False

    @property
    def _has_peers(self) -> bool:
        return self.run is not None and not self._alone

    def _whole(self, function: Callable[..., R], *args: Any, **kwargs: Any) -> R:
        try:
            return function(*args, **kwargs)
        finally:
            if self.run is not None:
                self.run._check_interrupted()
