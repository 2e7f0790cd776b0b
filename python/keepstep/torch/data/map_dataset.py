"""What a data set must have, and may have."""

from __future__ import annotations

from typing import Any, Protocol


class MapDataset(Protocol):
    """What `run.steps` reads: a length, and samples by number.

    A data set may also have ``job_order(seed, position, count, shuffle)``, the numbers of `count` samples from
    `position` of the training on, where the order is its own; ``make_batch(numbers)``, which makes a whole
    micro-batch where the user gives no `collate`; and ``will_need(numbers)``, which is told early what will be read,
    and returns at once.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...
