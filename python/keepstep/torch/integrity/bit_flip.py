"""Silent corruption, to test its detection: flips one bit of a protected parameter or of its gradient."""

from __future__ import annotations

import functools
import random
from typing import TYPE_CHECKING

import torch

from keepstep._errors import KeepstepError
from keepstep._faults import Plan

if TYPE_CHECKING:
    from keepstep.torch.state.registry import Registry


def flip_bit(tensor: torch.Tensor, index: int, bit: int) -> None:
    """Bypasses autograd: the version counter does not move, as in a hardware fault."""
    data = tensor.data
    place = tuple(int(i) for i in torch.unravel_index(torch.tensor(index), data.shape))
    element = data[place].reshape(1).clone()
    octets = element.view(torch.uint8)
    octets[bit // 8] ^= 1 << (bit % 8)
    data[place] = element[0]


def choose(registry: Registry, what: str, seed: int, step: int) -> Plan:
    """Chooses a bit of a protected ``"parameter"`` or of its ``"gradient"``; the same for the same seed and step.

    Raises:
        KeepstepError: this process has nothing of that kind now.
    """
    found: list[tuple[str, torch.Tensor]] = []
    for name, item in registry.objects.items():
        if isinstance(item, torch.nn.Module):
            for key, parameter in item.named_parameters():
                tensor = parameter.grad if what == "gradient" else parameter
                if tensor is not None and tensor.numel() > 0 and not tensor.is_sparse:
                    found.append((f"{name}/{key}{'.grad' if what == 'gradient' else ''}", tensor))
    if not found:
        raise KeepstepError(f"inject flip: no protected module has a {what} now; gradients are there before_vote only")
    random_numbers = random.Random(f"{seed}/{step}/{what}")
    name, tensor = random_numbers.choice(found)
    index = random_numbers.randrange(tensor.numel())
    bit = random_numbers.randrange(tensor.element_size() * 8)
    return Plan(functools.partial(flip_bit, tensor, index, bit), f"{name}[{index}], bit {bit}")
