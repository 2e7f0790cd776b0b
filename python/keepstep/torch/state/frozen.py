"""Parameters that nothing updates: the base of a model whose adapters are trained.

Every process builds them, so they need not be sent, copied or saved. What is compared instead is a digest of each.

A module that is frozen as a whole does not count: averaged weights and target networks look like that, and change. In
a module that is trained in part, a parameter is frozen if it needs no gradient, no protected optimizer has it, and it
is as it was when it was registered. One that changes later is protected like any other from then on. So is one that an
earlier training function of the script trained: a process that comes later cannot build it.

Of a DTensor each process has a part. Its digest is compared where another process has the same part. One that changes
on any rank in the first steps is protected on all.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterable, Mapping, MutableMapping
from dataclasses import dataclass

import torch
from torch.utils.weak import WeakIdKeyDictionary

from keepstep._errors import KeepstepError
from keepstep.torch.tensors import dtensor
from keepstep.torch.tensors.digest import of_bytes, on_device

Adopts = Callable[[set[str], set[str]], set[str]]
FROZEN = "/frozen"  # their digests among the values that a peer, or a checkpoint, has

# Of each parameter that this process has ever registered: its version counter and address, if it was frozen then.
_registered: MutableMapping[torch.Tensor, tuple[int, ...] | None] = WeakIdKeyDictionary()


@dataclass(frozen=True)
class _Seen:
    """A parameter when it was registered. `here`: a digest that only this device can repeat."""

    parameter: torch.Tensor
    mark: tuple[int, ...]
    digest: str
    here: int

    def unchanged(self) -> bool:
        """As far as that shows without looking at its values."""
        return _mark(self.parameter) == self.mark

    def same_values(self) -> bool:
        return self.unchanged() and _here(self.parameter) == self.here


class Frozen:
    """The frozen parameters of one worker, by their names in the registry."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}
        self._adopted: set[str] = set()  # were frozen when they were registered
        self._trained = False  # this process committed a step

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
        self._adopted.clear()
        self._trained = False

    def names(self, updated: Container[int]) -> set[str]:
        """Those that are frozen now. `updated`: ids of the parameters that optimizers have."""
        return {name for name, seen in self._seen.items() if id(seen.parameter) not in updated and seen.unchanged()}

    def adopt(self, names: Iterable[str]) -> None:
        """These are protected from now on: they have changed, here or where they come from."""
        for name in names:
            if self._seen.pop(name, None) is not None:
                self._adopted.add(name)

    def digests(self, names: Container[str]) -> dict[str, str]:
        """What `require_same` compares in another process."""
        return {name: seen.digest for name, seen in self._seen.items() if name in names}

    def require_built(self, digests: Mapping[str, str]) -> None:
        """The state goes back to a step in which these were frozen. Ends this process if one of them changed here
        since: nothing has its old values, so a replacement must build it.
        """
        for name in digests:
            seen = self._seen.get(name)
            if name in self._adopted or (seen is not None and self._trained and not seen.same_values()):
                print(
                    f"keepstep: the frozen parameter '{name}' was changed in a step that is taken back, and only the "
                    "function that run.setup calls can make it as it was: this process ends, to be replaced",
                    file=sys.stderr,
                )
                raise SystemExit(1)

    def require_same(self, digests: Mapping[str, str]) -> None:
        """Raises KeepstepError if a parameter that is frozen there had other values here when it was registered."""
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

    def recheck(self, step: int, updated: Container[int], adopts: Adopts | None) -> None:
        """After each of the first commits of a process, and now and then later. Computes the digests again:
        ``parameter.data`` may have been written to, which leaves no other trace.

        With `adopts`, what changed is protected from now on. It is called once, on all ranks, with the names of the
        DTensors whose part changed here, and with those of all that could; it returns those that changed on any rank.
        Without, what changed without a trace raises a KeepstepError: a process that was replaced since has the old
        values.
        """
        self._trained = True
        names = self.names(updated)
        changed = [name for name in names if _here(self._seen[name].parameter) != self._seen[name].here]
        if adopts is not None:
            parts = {name for name, seen in self._seen.items() if dtensor.is_dtensor(seen.parameter)}
            changed += adopts(parts & {*changed, *(parts - names)}, parts)
        elif changed:
            raise KeepstepError(
                f"state: the frozen parameter '{min(changed)}' was changed through .data by step {step}, which was not "
                "so in the first steps. Change it in place under torch.no_grad(), so that it is protected from then on"
            )
        self.adopt(changed)


def _mark(parameter: torch.Tensor) -> tuple[int, ...]:
    """Version counters and the address of what this process holds of it: a change in place shows in one of them. (An
    operation on a DTensor counts there only, one on its part only there.)"""
    held = dtensor.local(parameter)
    return parameter._version, held._version, held.data_ptr()


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
