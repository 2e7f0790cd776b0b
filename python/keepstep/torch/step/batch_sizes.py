"""The samples of a step and of a micro-batch at each world size, and the position in the data."""

from __future__ import annotations

import operator
from dataclasses import dataclass

import torch

from keepstep._errors import KeepstepError
from keepstep.scaling import PerWorld, everywhere, max_ranks, micro_batch_mistakes
from keepstep.torch.data_parallel import replicas
from keepstep.torch.state.registry import Registry


@dataclass(frozen=True)
class Batches:
    """The batch sizes given to `run.steps`."""

    global_batch: PerWorld[int]
    micro_batch: PerWorld[int]

    @classmethod
    def of(cls, global_batch: int | PerWorld[int], micro_batch: int | PerWorld[int]) -> Batches:
        """Makes them from both arguments. Raises an error that lists every mistake at every size."""
        both = cls(_per_world("global_batch", global_batch), _per_world("micro_batch", micro_batch))
        if mistakes := micro_batch_mistakes(both.global_batch, both.micro_batch):
            raise KeepstepError("run.steps: " + "; ".join(mistakes))
        if replicas.reproducible() and not (both.global_batch.constant and both.micro_batch.constant):
            raise KeepstepError(
                "run.steps: in reproducible mode the bits follow from the micro-batches, and these would be others at "
                "other world sizes; give global_batch and micro_batch as numbers"
            )
        return both

    def at(self, world_size: int) -> tuple[int, int]:
        """(global batch, micro-batch)"""
        return self.global_batch(world_size), self.micro_batch(world_size)

    def feeds(self, world_size: int) -> bool:
        """Whether each of this many ranks has a micro-batch."""
        batch, micro = self.at(world_size)
        return batch // micro >= world_size

    def even_sizes(self, ranks_per_part: int) -> list[int]:
        """The world sizes at which all groups of `ranks_per_part` ranks get the same number of micro-batches.

        Empty if unknown, because batches change with the world.
        """
        if not (self.global_batch.constant and self.micro_batch.constant):
            return []
        batch, micro = self.at(1)
        count = batch // micro
        return [parts * ranks_per_part for parts in range(1, count + 1) if count % parts == 0]

    @property
    def max_ranks(self) -> int:
        return max_ranks(self.global_batch, self.micro_batch)


def _per_world(name: str, value: int | PerWorld[int]) -> PerWorld[int]:
    if isinstance(value, PerWorld):
        return value
    try:
        return everywhere(name, operator.index(value))
    except TypeError:
        raise KeepstepError(
            f"run.steps: {name}={value!r} is a {type(value).__qualname__}; give a whole number, or what "
            f'keepstep.scale_config(...).value("{name}") says'
        ) from None


def checked_position(position: torch.Tensor | None, registry: Registry, batches: Batches) -> torch.Tensor | None:
    """`position`, if it is valid."""
    if position is None:
        if batches.global_batch.constant:
            return None
        raise KeepstepError(
            "run.steps: where global_batch changes with the world, the steps so far do not say which samples were "
            "taken; give position=, a field of the State: "
            "return keepstep.State(..., position=torch.zeros((), dtype=torch.int64)) from build(), then "
            "run.steps(..., position=state.position)"
        )
    if position.dtype != torch.int64 or position.numel() != 1 or position.device.type != "cpu":
        raise KeepstepError(
            f"run.steps: position is {position.dtype} with {position.numel()} elements on {position.device}; one int64 "
            "in main memory is needed"
        )
    if not any(item is position for item in registry.objects.values()):
        raise KeepstepError(
            "run.steps: position= is no field of the State, so a replaced rank would not know which samples were "
            "taken: return keepstep.State(..., position=position) from build()"
        )
    return position
