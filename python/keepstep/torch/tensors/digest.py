"""64-bit digests of tensors."""

from __future__ import annotations

import torch

from keepstep import _engine
from keepstep.torch.tensors.memory import dense, piece

THREADS = 4  # more would wait for the same memory


def digest(tensors: list[torch.Tensor | None]) -> int:
    """64 bits of all `tensors` in this order, on any device. None counts as a missing tensor."""
    pieces: list[tuple[int, int]] = []
    held: list[torch.Tensor] = []
    elsewhere: list[torch.Tensor] = []
    for tensor in tensors:
        if tensor is None:
            pieces.append((0, 0))
        elif tensor.device.type == "cpu":
            whole = dense(tensor.detach())
            if whole is not tensor:
                held.append(whole)  # an address alone does not keep a copy alive
            pieces.append(piece(whole))
        else:
            elsewhere.append(tensor.detach())
    here = _engine.digest_pieces(pieces, min(torch.get_num_threads(), THREADS))
    return here if not elsewhere else _engine.mix_seed(here, on_device(elsewhere))


def of_bytes(tensor: torch.Tensor) -> int:
    """XXH3 of one tensor's bytes: the same on every device."""
    whole = dense(tensor.detach()).cpu()  # held: an address alone does not keep a copy alive
    return _engine.digest(*piece(whole))


def on_device(tensors: list[torch.Tensor]) -> int:
    """The same for memory that the engine cannot read: adds each tensor's words, so no single flipped bit is missed.

    Values that are swapped within a tensor are missed.
    """
    sums: dict[torch.device, list[torch.Tensor]] = {}
    for tensor in tensors:
        flat = dense(torch.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1)
        words = flat.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()])
        sums.setdefault(tensor.device, []).append(words.sum(dtype=torch.int64))
    total = 0
    for each in sums.values():
        for value in torch.stack(each).tolist():  # one copy per device
            total = _engine.mix_seed(total, value % 2**64)
    return total
