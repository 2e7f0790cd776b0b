"""Checks of a collective's tensors, with Gloo's error texts, so that code that matches them works.

All raise RuntimeError, which names the collective, on the calling rank, before anything is started.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch

Tensors = list[torch.Tensor]


def refuse(what: str, why: str) -> NoReturn:
    raise RuntimeError(f"{what}: {why}")


def root_rank(what: str, root: int, size: int) -> None:
    if not 0 <= root < size:
        refuse(what, f"invalid root rank: {root}")


def root_tensor(what: str, root: int, tensors: Tensors) -> None:
    if not 0 <= root < len(tensors):
        refuse(what, f"invalid root tensor: {root}")


def non_empty(what: str, tensors: Tensors) -> None:
    if not tensors:
        refuse(what, "requires non-empty tensor list")


def single(what: str, items: Sequence[Any], of: str) -> None:
    if len(items) != 1:
        refuse(what, f"requires a single-element {of}")


def same_layout(what: str, tensors: Tensors) -> None:
    for index, tensor in enumerate(tensors):
        if tensor.layout is not tensors[0].layout:
            refuse(what, f"invalid tensor layout at index {index} (expected {tensors[0].layout}, got {tensor.layout})")


def alike(what: str, tensors: Tensors, like: torch.Tensor) -> None:
    """Of one type and size with `like`."""
    for index, tensor in enumerate(tensors):
        if tensor.dtype is not like.dtype:
            refuse(what, f"invalid tensor type at index {index} (expected {like.dtype}, got {tensor.dtype})")
        if tensor.shape != like.shape:
            refuse(
                what, f"invalid tensor size at index {index} (expected {list(like.shape)}, got {list(tensor.shape)})"
            )


def one_for_each_rank(what: str, tensors: Tensors, size: int, side: str, like: torch.Tensor) -> None:
    """Of the root's list in gather and scatter; `side`: "input" or "output"."""
    if len(tensors) != size:
        refuse(
            what,
            f"Incorrect {side} list size {len(tensors)}. {side.capitalize()} list size should be {size}, same as size "
            "of the process group.",
        )
    alike(what, tensors, like)


# ---- of whole calls; `size`: ranks of the group


def check_broadcast(tensors: Tensors, options: Any, size: int) -> None:
    root_rank("broadcast", options.rootRank, size)
    root_tensor("broadcast", options.rootTensor, tensors)
    alike("broadcast", tensors, tensors[0])


def check_reduce(tensors: Tensors, options: Any, size: int) -> None:
    root_rank("reduce", options.rootRank, size)
    root_tensor("reduce", options.rootTensor, tensors)
    single("reduce", tensors, "tensor list")


def check_all_reduce(tensors: Tensors) -> None:
    if len(tensors) == 1:
        return  # the everyday call
    non_empty("all_reduce", tensors)
    same_layout("all_reduce", tensors)
    alike("all_reduce", tensors, tensors[0])


def check_all_reduce_coalesced(tensors: Tensors) -> None:
    what = "allreduce_coalesced"
    non_empty(what, tensors)
    same_layout(what, tensors)
    if len({tensor.dtype for tensor in tensors}) > 1:
        refuse(what, "tensors must all have the same type")
    if len({tensor.device for tensor in tensors}) > 1:
        refuse(what, "tensors must all be on the same device")
    if tensors[0].layout is not torch.strided:
        refuse(what, f"unsupported layout {tensors[0].layout}")


def check_all_gather(outputs: list[Tensors], inputs: Tensors, size: int) -> None:
    what = "all_gather"
    if not inputs:
        refuse(what, "requires non-empty input tensor list")
    if len(inputs) != len(outputs):
        refuse(what, "requires input/output tensor lists to have the same length")
    expected = len(inputs) * size
    for index, output in enumerate(outputs):
        if len(output) != expected:
            refuse(what, f"invalid output tensor list at index {index} (expected length {expected}, got {len(output)})")
    for tensors in (inputs, *outputs):
        alike(what, tensors, inputs[0])


def check_all_gather_coalesced(outputs: list[Tensors], inputs: Tensors, size: int) -> None:
    what = "allgather_coalesced"
    if not inputs:
        refuse(what, "requires non-empty input tensor list")
    if len(outputs) != size:
        refuse(what, "output lists should be equal to world size")
    for output in outputs:
        if len(output) != len(inputs):
            refuse(what, f"invalid output size: (expected length {len(inputs)}, got {len(output)})")
        for index, (tensor, given) in enumerate(zip(output, inputs, strict=True)):
            if tensor.shape != given.shape:
                refuse(
                    what,
                    f"invalid size of output tensor at index {index} (expected length {list(given.shape)}, got "
                    f"{list(tensor.shape)})",
                )
            if tensor.dtype is not given.dtype:
                refuse(what, f"invalid tensor type at index {index} (expected {given.dtype}, got {tensor.dtype})")


def check_reduce_scatter(outputs: Tensors, inputs: list[Tensors], rank: int, size: int) -> None:
    what = "reduce_scatter"
    single(what, outputs, "output tensor list")
    single(what, inputs, "input list")
    if len(inputs[0]) != size:
        refuse(what, f"{len(inputs[0])} inputs were given; it takes one for each of {size} ranks")
    own, output = inputs[0][rank], outputs[0]
    for index, tensor in enumerate(inputs[0]):
        if tensor.dtype is not output.dtype:
            refuse(what, f"invalid tensor type at index {index} (expected {output.dtype}, got {tensor.dtype})")
    if output.numel() != own.numel():
        refuse(
            what,
            f"the output is {list(output.shape)}, the input for this rank {list(own.shape)}",
        )


def check_gather(outputs: list[Tensors], inputs: Tensors, root: int, rank: int, size: int) -> None:
    root_rank("gather", root, size)
    single("gather", inputs, "input tensor list")
    if root == rank:
        single("gather", outputs, f"output list containing a list with {size} tensors")
        one_for_each_rank("gather", outputs[0], size, "output", inputs[0])
    elif outputs:
        refuse("gather", "requires empty output on non-root")


def check_scatter(outputs: Tensors, inputs: list[Tensors], root: int, rank: int, size: int) -> None:
    root_rank("scatter", root, size)
    single("scatter", outputs, "output tensor list")
    if root == rank:
        single("scatter", inputs, f"input list containing a list with {size} tensors")
        one_for_each_rank("scatter", inputs[0], size, "input", outputs[0])
    elif inputs:
        refuse("scatter", "requires empty input on non-root")
