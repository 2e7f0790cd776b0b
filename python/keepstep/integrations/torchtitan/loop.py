"""What torchtitan's own loop calls, as far as an entry does it in another way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torchtitan.distributed import utils as dist_utils

if TYPE_CHECKING:
    from keepstep.integrations.torchtitan.entry import Entry

_entry: Entry | None = None  # the one that is under way


def enter(entry: Entry | None) -> None:
    """An entry begins; None: it is over."""
    global _entry
    _entry = entry


def recovering(kind: type[Any]) -> type[Any]:
    """`kind`, a trainer, whose loop belongs to the entry that is under way."""
    return type(kind.__name__, (_Recovering, kind), {"__module__": kind.__module__})


class _Recovering:
    """A trainer whose steps are an entry's."""

    def should_continue_training(self) -> bool:
        assert _entry is not None
        follows: bool = super().should_continue_training()  # type: ignore[misc]
        return follows and _entry.begin_step()

    def train_step(self, data_iterator: Any) -> None:
        assert _entry is not None
        super().train_step(_entry.batches(data_iterator))  # type: ignore[misc]
        _entry.logged_step()

    def forward_backward_step(self, **batch: Any) -> torch.Tensor:
        assert _entry is not None
        return _entry.loss(super().forward_backward_step, batch)  # type: ignore[misc]


def _clip_grad_norm(*args: Any, **kwargs: Any) -> torch.Tensor:
    found: torch.Tensor = _clip(*args, **kwargs) if _entry is None else _entry.norm(lambda: _clip(*args, **kwargs))
    return found


def _set_pg_timeouts(*args: Any, **kwargs: Any) -> None:
    """keepstep's process groups have none: it finds ranks that hang (docs/design/hangs.md)."""
    if _entry is None:
        _set_timeouts(*args, **kwargs)


_clip = dist_utils.clip_grad_norm_
_set_timeouts = dist_utils.set_pg_timeouts
dist_utils.clip_grad_norm_ = _clip_grad_norm
dist_utils.set_pg_timeouts = _set_pg_timeouts
