"""A model that outlives the entries of a training function, whose replica each of them makes anew."""

from __future__ import annotations

import contextlib
from typing import Any

import torch


class PreparedModel(torch.nn.Module):
    """A model, computed by the replica of the entry that is under way.

    Attributes:
        module: the user's.
        replica: its wrapper in this generation.
    """

    replica: Any

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module
        self.enter(None)

    def enter(self, replica: torch.nn.Module | None) -> None:
        """An entry begins, with this replica."""
        self.__dict__["replica"] = replica  # which is no part of this module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        computed_by = self.module if self.replica is None or not self.training else self.replica
        return computed_by(*args, **kwargs)

    def no_sync(self) -> contextlib.AbstractContextManager[None]:
        """Gradients of this process alone, as of a DistributedDataParallel."""
        context: contextlib.AbstractContextManager[None] = self.replica.no_sync()
        return context
