"""What a library's process keeps for its rank besides model, optimizers and schedules."""

from __future__ import annotations

from typing import Any

import torch


class TakenState(torch.nn.Module):
    """Taken just before each vote, and protected as extra state: a replacement goes on with its predecessor's.

    Attributes:
        taken: the state at the newest vote of this rank, or that it began with. Kept without a copy.
    """

    def __init__(self) -> None:
        super().__init__()
        self.taken: dict[str, Any] = {}

    def get_extra_state(self) -> dict[str, Any]:
        return self.taken

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.taken = state
