"""How sharded state survives the loss of nodes: copies, or parity."""

from __future__ import annotations

from dataclasses import dataclass

from keepstep import _engine
from keepstep._errors import KeepstepError


@dataclass(frozen=True)
class Copies:
    """Keeps every rank's shard on `nodes` nodes, including the rank's own; on all nodes if there are fewer."""

    nodes: int = 2

    def __post_init__(self) -> None:
        if type(self.nodes) is not int or self.nodes < 1:
            raise KeepstepError(f"keepstep.Copies({self.nodes!r}): at least 1 node, the rank's own")


@dataclass(frozen=True)
class Parity:
    """Protects groups of up to `data` ranks on different nodes with `parity` Reed-Solomon blocks on other nodes.

    Any `parity` nodes of a group may be lost, and the blocks take only ``parity / data`` of the memory of one copy:
    ``Parity(data=6, parity=2)`` survives the loss of any two of eight nodes. With fewer nodes the groups are smaller;
    with ``parity + 1`` nodes or fewer, copies are used instead.
    """

    data: int
    parity: int

    def __post_init__(self) -> None:
        numbers = (self.data, self.parity)
        most = _engine.MAX_BLOCKS_OF_GROUP
        if any(type(number) is not int or number < 1 for number in numbers) or sum(numbers) > most:
            raise KeepstepError(
                f"keepstep.Parity(data={self.data!r}, parity={self.parity!r}): both are at least 1, and at most {most} "
                "together; Parity(data=6, parity=2) survives the loss of any two of eight nodes"
            )


DEFAULT = Copies()
