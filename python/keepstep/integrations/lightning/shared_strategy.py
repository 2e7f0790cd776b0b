"""What keepstep's strategies for a Trainer and for Fabric share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch

    from keepstep.torch.runtime.run import Run

R = TypeVar("R")


class SharedStrategy:
    """Comes before a strategy of Lightning among the bases of a class.

    Its collectives belong to an entry, and do nothing outside of one. One that a fault cuts short returns zeros, so the
    entry is left.

    Attributes:
        run: of the entry that is under way; None outside of one.
    """

    run: Run | None = None
    _alone = False

    @property
    def root_device(self) -> torch.device:
        devices = self.parallel_devices  # type: ignore[attr-defined]
        return devices[self.local_rank % len(devices)]  # type: ignore[attr-defined]

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        return {"num_replicas": self.world_size, "rank": self.global_rank}  # type: ignore[attr-defined]

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
