"""What a trainer's process keeps besides model, optimizers and schedules: where it is, and what its log will say.

It may differ between ranks. It is taken just before the vote on a step, and goes with the rank's shard.
"""

from __future__ import annotations

from typing import Any

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from keepstep.integrations.taken_state import TakenState
from keepstep.torch.state import extra_state


class StepFigures:
    """What the trainer's log of a step follows from.

    Attributes:
        tokens: that count in the loss, of each batch of this rank.
        losses: of each forward and backward of this rank.
        norm: of the gradients, over all ranks; None before it is known.
        rates: learning rates that the step was computed with, by the names that the trainer logs.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.losses: list[torch.Tensor] = []
        self.norm: torch.Tensor | None = None
        self.rates: dict[str, float] = {}


class RankState(TakenState):
    """Of one trainer."""

    def __init__(self, trainer: Any) -> None:
        super().__init__()
        self._trainer = trainer

    def take(self, figures: StepFigures) -> None:
        """After the last batch of a step, and before its vote."""
        state = {
            "trainer": self._trainer.state_dict(),
            "loader": _position(self._trainer.dataloader),
            "tokens": figures.tokens,
            "losses": figures.losses,
            "norm": figures.norm,
            "rates": figures.rates,
        }
        plain: dict[str, Any] = extra_state.decoded(extra_state.encoded("torchtitan's Trainer", state))  # a copy
        self.taken = plain

    def put_back(self) -> StepFigures:
        """The trainer of this process is as it was when the state was taken."""
        self._trainer.load_state_dict(self.taken["trainer"])
        _move(self._trainer.dataloader, self.taken["loader"])
        figures = StepFigures()
        figures.tokens = list(self.taken["tokens"])
        figures.losses = list(self.taken["losses"])
        figures.norm = self.taken["norm"]
        figures.rates = dict(self.taken["rates"])
        return figures


def _position(loader: Any) -> dict[str, Any]:
    """Of the loader, as plain data: torchtitan's own would be pickled."""
    if not isinstance(loader, StatefulDataLoader):
        return dict(loader.state_dict())
    if loader.next_iter_state is not None:  # loaded, and not iterated yet: a data set may answer with its beginning
        return dict(loader.next_iter_state)
    return dict(StatefulDataLoader.state_dict(loader))


def _move(loader: Any, position: dict[str, Any]) -> None:
    # A copy: loaders keep what they are given, and change it.
    position = extra_state.decoded(extra_state.encoded("", position))
    if isinstance(loader, StatefulDataLoader):
        StatefulDataLoader.load_state_dict(loader, position)
    else:
        loader.load_state_dict(position)
