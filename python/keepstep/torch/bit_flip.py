"""Silent corruption, for tests of what finds it: one bit of a protected parameter, or of its gradient, is flipped."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

from keepstep._errors import KeepstepError
from keepstep.torch import run as run_module


@dataclass(frozen=True)
class Flip:
    """One bit of one element. Nothing is changed before `apply`."""

    name: str
    tensor: torch.Tensor
    index: int
    bit: int

    @property
    def text(self) -> str:
        return f"{self.name}[{self.index}], bit {self.bit}"

    def apply(self) -> None:
        """Behind autograd's back: its version counter does not move, as with a fault of the hardware."""
        data = self.tensor.data
        place = tuple(int(i) for i in torch.unravel_index(torch.tensor(self.index), data.shape))
        element = data[place].reshape(1).clone()
        octets = element.view(torch.uint8)
        octets[self.bit // 8] ^= 1 << (self.bit % 8)
        data[place] = element[0]


def choose(what: str, seed: int, step: int) -> Flip:
    """A bit of a ``"parameter"``, or of a ``"gradient"``; the same for the same seed and step.

    Raises:
        KeepstepError: there is nothing of the kind in this process now.
    """
    run = run_module._current
    found: list[tuple[str, torch.Tensor]] = []
    for name, item in {} if run is None else run._registry.objects.items():
        if isinstance(item, torch.nn.Module):
            for key, parameter in item.named_parameters():
                tensor = parameter.grad if what == "gradient" else parameter
                if tensor is not None and tensor.numel() > 0 and not tensor.is_sparse:
                    found.append((f"{name}/{key}{'.grad' if what == 'gradient' else ''}", tensor))
    if not found:
        raise KeepstepError(f"inject flip: no protected module has a {what} now; gradients are there before_vote only")
    random_numbers = random.Random(f"{seed}/{step}/{what}")
    name, tensor = random_numbers.choice(found)
    return Flip(
        name,
        tensor,
        random_numbers.randrange(tensor.numel()),
        random_numbers.randrange(tensor.element_size() * 8),
    )
