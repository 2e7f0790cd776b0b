"""The fixed map from gradients to buckets, and what a bucket's vector holds.

The map depends only on the parameters' order, sizes and types: last parameters first, because backward reaches them
first. It never changes (DDP rebuilds its buckets after the first iteration).

A bucket is one vector: its parameters' gradients, then one flag per parameter that says whether any rank had a gradient
for it. So finding unused parameters needs no extra collective.
"""

from __future__ import annotations

import torch

from keepstep._errors import KeepstepError
from keepstep.torch.reduction.reduce import SUMMABLE, Sum

FIRST_BUCKET_BYTES = 1 << 20  # small, so that communication begins early in backward
# What a flag counts up by. Divided by any number of tokens it is still something in float16.
FLAG = 16384.0


class Bucket:
    """Some parameters of one type.

    Attributes:
        flat: the vector, where results arrive; gradients are views of it.
        views: of `flat`, by parameter, in the parameters' shapes.
        arrived: by parameter: whether its gradient came in the current backward pass.
    """

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        self.parameters = parameters
        self.offsets: list[int] = []
        at = 0
        for parameter in parameters:
            self.offsets.append(at)
            at += parameter.numel()
        self.flags_at = at
        self.flat = torch.zeros(at + len(parameters), dtype=parameters[0].dtype)
        self.views = [
            self.flat[offset : offset + parameter.numel()].view(parameter.shape)
            for offset, parameter in zip(self.offsets, parameters, strict=True)
        ]
        self.arrived = [False] * len(parameters)
        self.missing = len(parameters)
        self._all_flags = torch.full((len(parameters),), FLAG, dtype=self.flat.dtype)
        self._sum: Sum | None = None

    @property
    def sum(self) -> Sum:
        """For the canonical order; made when first asked for."""
        if self._sum is None:
            self._sum = Sum(like=self.flat)
        return self._sum

    def begin_backward(self) -> None:
        self.arrived = [False] * len(self.parameters)
        self.missing = len(self.parameters)

    def arrive(self, index: int) -> None:
        self.arrived[index] = True
        self.missing -= 1

    def flags(self) -> torch.Tensor:
        """One per parameter: FLAG where its gradient arrived, else 0."""
        if all(self.arrived):
            return self._all_flags
        return torch.tensor(self.arrived, dtype=self.flat.dtype) * FLAG

    def used(self) -> list[bool]:
        """By parameter: whether any rank had a gradient for it. Once the result is in `flat`."""
        used: list[bool] = self.flat[self.flags_at :].ne(0).tolist()
        return used

    @property
    def bytes(self) -> int:
        """Memory held."""
        own = self.flat.numel() * self.flat.element_size()
        return own + (0 if self._sum is None else self._sum.bytes)


def make_buckets(module: torch.nn.Module, bucket_bytes: int) -> list[Bucket]:
    """The buckets of the parameters of `module` that require gradients, in the order in which they are reduced."""
    buckets: list[Bucket] = []
    open_: dict[torch.dtype, tuple[list[torch.nn.Parameter], int]] = {}  # and their bytes
    for name, parameter in reversed(list(module.named_parameters())):
        if not parameter.requires_grad:
            continue
        if parameter.dtype not in SUMMABLE or parameter.device.type != "cpu":
            raise KeepstepError(
                f"Replicate: '{name}' is {parameter.dtype} on {parameter.device}; this version reduces gradients of "
                "float32, float64, float16 and bfloat16 in main memory"
            )
        parameters, taken = open_.pop(parameter.dtype, ([], 0))
        parameters.append(parameter)
        taken += parameter.numel() * parameter.element_size()
        if taken >= (bucket_bytes if buckets else min(bucket_bytes, FIRST_BUCKET_BYTES)):
            buckets.append(Bucket(parameters))
        else:
            open_[parameter.dtype] = (parameters, taken)
    buckets.extend(Bucket(parameters) for parameters, _ in open_.values())
    return buckets
