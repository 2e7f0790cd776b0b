"""For Lightning: a data module whose training batches come from the node's ring (`keepstep.data.cached`).

This module does not import Lightning; the author of the data module has done that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from keepstep.torch.data.cached import CachedLoader

Module = TypeVar("Module")


def cached(
    module: Module, ahead: int = 10, behind: int = 2, *, limit_bytes: int | None = None, name: str = "data"
) -> Module:
    """Puts `module.train_dataloader` behind `keepstep.data.cached`, in place; returns `module`.

    `train_dataloader` must return one loader of the global order, with a length: no DistributedSampler, and
    ``Trainer(use_distributed_sampler=False)``. Each rank gets every world-size-th batch. An epoch has
    ``len(loader) // world_size`` batches on each rank; leftover batches start the next epoch, so nothing is dropped.
    Checkpoints contain the position. The module's other loaders are unchanged.

    The arguments are those of `keepstep.data.cached`.
    """
    make: Any = module.train_dataloader  # type: ignore[attr-defined]

    def train_dataloader() -> Rounds:
        from keepstep.torch.data.cached import cached as cached_loader

        return Rounds(cached_loader(make(), ahead, behind, limit_bytes=limit_bytes, name=name))

    module.train_dataloader = train_dataloader  # type: ignore[attr-defined]
    return module


class Rounds:
    """A cached loader with epochs of equal length, which a Trainer relies on.

    Attributes:
        loader: the cached loader.
    """

    def __init__(self, loader: CachedLoader) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return max(1, len(self.loader.loader) // self.loader.world_size)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        return self.loader.rounds(len(self))

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state)
