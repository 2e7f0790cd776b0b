"""Parameters that nothing updates: the base of a model whose adapters are trained.

Every process builds them, so they need not be sent, copied or saved. What is compared instead is a digest of each.

A module that is frozen as a whole does not count: averaged weights and target networks look like that, and change. In
a module that is trained in part, a parameter is frozen if it needs no gradient, no protected optimizer has it, and it
is as it was when it was registered. One that changes later is protected like any other from then on. So is one that an
earlier training function of the script trained: a process that comes later cannot build it.

Of a DTensor each process has a part. Its digest is compared where another process has the same part.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, MutableMapping
from dataclasses import dataclass

import torch
from torch.utils.weak import WeakIdKeyDictionary

from keepstep._errors import KeepstepError
from keepstep.torch.tensors import dtensor
from keepstep.torch.tensors.digest import of_bytes, on_device

FROZEN = "/frozen"  # their digests among the values that a peer, or a checkpoint, has

# Of each parameter that this process has ever registered: its version counter and address, if it was frozen then.
_registered: MutableMapping[torch.Tensor, tuple[int, int] | None] = WeakIdKeyDictionary()


@dataclass(frozen=True)
class _Seen:
    """A parameter when it was registered. `here`: a digest that only this device can repeat."""

    parameter: torch.Tensor
    mark: tuple[int, int]
    digest: str
    here: int

    def unchanged(self) -> bool:
        return _mark(self.parameter) == self.mark


class Frozen:
    """The frozen parameters of one worker, by their names in the registry."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def add(self, name: str, module: torch.nn.Module) -> None:
        """`module` is registered under `name`."""
        parameters = dict(module.named_parameters())
        in_part = any(each.requires_grad for each in parameters.values())
        for key, each in parameters.items():
            if torch.nn.parameter.is_lazy(each):
                continue  # it has no values yet, and is refused when it is flattened
            now = _mark(each)
            could_be = in_part and not each.requires_grad and each.numel() > 0
            if _registered.setdefault(each, now if could_be else None) == now:
                self._seen[f"{name}/{key}"] = _seen(each)

    def __len__(self) -> int:
        """How many could be."""
        return len(self._seen)

    def clear(self) -> None:
        self._seen.clear()

    def names(self, updated: Container[int]) -> set[str]:
        """Those that are frozen now. `updated`: ids of the parameters that optimizers have."""
        return {name for name, seen in self._seen.items() if id(seen.parameter) not in updated and seen.unchanged()}

    def adopt(self, names: Iterable[str]) -> None:
        """A peer sends these: they have changed there."""
        for name in names:
            self._seen.pop(name, None)

    def digests(self, names: Container[str]) -> dict[str, str]:
        """What `require_same` compares in another process."""
        return {name: seen.digest for name, seen in self._seen.items() if name in names}

    def require_same(self, digests: Mapping[str, str]) -> None:
        """Raises KeepstepError if a parameter that is frozen there has other values here."""
        known = {name: seen.digest for name, seen in self._seen.items()}
        differ = [name for name, each in digests.items() if _differ(known.get(name, each), each)]
        if differ:
            more = f" and {len(differ) - 1} more" if len(differ) > 1 else ""
            raise KeepstepError(
                f"state: the frozen parameter '{differ[0]}'{more} has other values here than on its peer, or in the "
                "checkpoint. No optimizer has it and it needs no gradient, so keepstep neither sends nor saves it: the "
                "function that run.setup calls must give it the same values in every process. Load it from one file, "
                "or seed what draws it"
            )

    def recheck(self, step: int, updated: Container[int], may_adopt: bool) -> None:
        """Computes the digests again: ``parameter.data`` may have been written to, which leaves no other trace.

        With `may_adopt`, what changed is protected from now on. Else it raises a KeepstepError: a process that was
        replaced since has the old values.
        """
        names = self.names(updated)
        changed = [name for name in names if _here(self._seen[name].parameter) != self._seen[name].here]
        if changed and not may_adopt:
            raise KeepstepError(
                f"state: the frozen parameter '{min(changed)}' was changed through .data by step {step}, which was not "
                "so in the first steps. Change it in place under torch.no_grad(), so that it is protected from then on"
            )
        self.adopt(changed)


def _mark(parameter: torch.Tensor) -> tuple[int, int]:
    """The version counter and the address of what this process holds of it: a change shows in one of them."""
    held = dtensor.local(parameter)
    return held._version, held.data_ptr()


def _seen(parameter: torch.Tensor) -> _Seen:
    held = dtensor.local(parameter)
    value = of_bytes(held)
    digest = f"{value % 2**64:016x}"
    if held is not parameter:
        digest += f" of {list(held.shape)} at {dtensor.offsets(parameter)[1]}"
    return _Seen(parameter, _mark(parameter), digest, value if held.device.type == "cpu" else _here(parameter))


def _differ(mine: str, theirs: str) -> bool:
    """Whether two digests are of the same part, with other values."""
    return mine != theirs and mine.partition(" ")[2] == theirs.partition(" ")[2]


def _here(parameter: torch.Tensor) -> int:
    """Without a copy from a device."""
    held = dtensor.local(parameter)
    return of_bytes(held) if held.device.type == "cpu" else on_device([held.detach()])
