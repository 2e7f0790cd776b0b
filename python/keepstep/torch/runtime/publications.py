"""``run.publish``: committed weights for processes that are no ranks (docs/design/publications.md).

The first rank of each node copies them into a safetensors file in new memory, in a thread, while the next step
computes; seals it, so that it can never change; and hands it to the agent, which outlives this process. What ranks hold
in parts, as DTensors, they gather first, all together.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from keepstep._errors import KeepstepError
from keepstep._state import protected_fields
from keepstep.checkpoint.safetensors import DTYPES, Layout, lay_out
from keepstep.publications import MAX_NAME_BYTES
from keepstep.torch.distributed import agreement
from keepstep.torch.runtime.published_file import PublishedFile
from keepstep.torch.tensors import dtensor
from keepstep.torch.tensors.digest import digest

if TYPE_CHECKING:
    from keepstep.torch.runtime.run import Run

MAX_PUBLICATIONS = 64  # src/agent/publications/publication_service.h


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Publication:
    name: str
    module: torch.nn.Module
    every_steps: int
    only_trained: bool

    def held(self) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
        """The live tensors by name; and the other names of tied ones, each with the name that it is under.

        For all ranks where state is sharded: hooks of ``state_dict()`` may gather tensors, as torchtitan's do.

        Raises:
            KeepstepError: a tensor has no place in the file, or there is none.
        """
        frozen = {name for name, each in self.module.named_parameters(remove_duplicate=False) if not each.requires_grad}
        found: dict[str, torch.Tensor] = {}
        others: dict[str, str] = {}
        first: dict[object, str] = {}
        for name, tensor in self.module.state_dict(keep_vars=True).items():
            if not isinstance(tensor, torch.Tensor) or (self.only_trained and name in frozen):
                continue
            # The part of a DTensor may be empty on one rank, and all ranks must find the same.
            divided = dtensor.is_dtensor(tensor)
            same = id(tensor) if divided else (tensor.data_ptr(), tensor.shape, tensor.stride())
            if tensor.numel() and same in first:
                others[name] = first[same]
                continue
            if _dtype(tensor) not in DTYPES or tensor.layout is not torch.strided:
                what = f"'{name}' ({tensor.dtype}, {tensor.layout})"
                raise KeepstepError(f"run.publish({self.name!r}): {what} has no place in safetensors")
            first[same] = name
            found[name] = tensor
        if not found:
            raise KeepstepError(f"run.publish({self.name!r}): there is no tensor to publish")
        return found, others

    def layout(self, held: dict[str, torch.Tensor], metadata: dict[str, str]) -> Layout:
        """Of the file with `held`."""
        return lay_out({name: (_dtype(tensor), tensor.shape) for name, tensor in held.items()}, metadata)

    def mark(self, with_values: bool) -> bytes:
        """What must be the same on all ranks: the layout, and the values of parameters that are no DTensors."""
        held, others = self.held()
        parameters = [each for each in held.values() if isinstance(each, torch.nn.Parameter)]
        values = digest([each for each in parameters if with_values and not dtensor.is_dtensor(each)])
        return json.dumps([self.name, self.every_steps, values]).encode() + self.layout(held, others).header


class Publications:
    """Of one process; what is registered belongs to one entry of the training function. For the main thread."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._session = run._session
        self._all: dict[str, Publication] = {}
        self._new = True  # this process has published nothing yet
        self._compared = False  # what is published of a step
        self._copies: threading.Thread | None = None

    def add(self, name: str, module: torch.nn.Module | None, every_steps: int, only_trained: bool) -> None:
        what = f"run.publish({name!r})"
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name.encode()) <= MAX_NAME_BYTES:
            raise KeepstepError(f"{what}: a printable name of 1 to {MAX_NAME_BYTES} bytes is needed")
        if type(every_steps) is not int or every_steps < 1:
            raise KeepstepError(f"{what}: every_steps={every_steps!r}; a number of steps from 1 on is needed")
        if len(self._all) >= MAX_PUBLICATIONS:
            raise KeepstepError(f"{what}: at most {MAX_PUBLICATIONS} names can be published")
        if name in self._all:
            raise KeepstepError(f"{what}: it is published already in this entry; give this one another name")
        if not self._run._loops.first:
            raise KeepstepError(f"{what} comes too late: call it in every entry, before run.steps")
        module = self._only_module(what, every_steps) if module is None else module
        publication = Publication(name, module, every_steps, only_trained)
        known = {id(each) for protected in self._run._registry.modules() for each in protected.parameters()}
        for path, parameter in module.named_parameters():
            if id(parameter) not in known:
                raise KeepstepError(f"{what}: '{path}' is not protected; publish what build() returned")
        if not self._run._shards.divided:
            publication.held()
        self._all[name] = publication

    def _only_module(self, what: str, every_steps: int) -> torch.nn.Module:
        fields = [each for state in self._run._states.all() for each in protected_fields(state).values()]
        modules = [each for each in fields if isinstance(each, torch.nn.Module) and [*each.parameters()]]
        if len(modules) != 1:
            raise KeepstepError(
                f"{what}: run.setup protects {len(modules)} modules; say which one, as in "
                f"{what[:-1]}, state.model, every_steps={every_steps})"
            )
        return modules[0]

    def clear(self) -> None:
        """The function was left; the next entry registers its own."""
        self._all.clear()

    def resume(self, version: int) -> None:
        """An entry begins after `version`: what was due may not have arrived, and a new node or start has nothing yet.

        The agent ignores a version that it has.
        """
        if not self._all or self._run.rehearsing:
            return
        new = self._new and self._first_of_node()
        if self._run._shards.divided:
            new = self._agree(new)
        self._publish(version, [each for each in self._all.values() if new or version % each.every_steps == 0])

    def after(self, version: int) -> None:
        """All ranks committed `version`."""
        due = [each for each in self._all.values() if version % each.every_steps == 0]
        if due and not self._compared and self._run._shards.divided and self._run.generation == 1:
            self._agree(False)  # slices that were equal as they were built no longer are
            self._compared = True
        self._publish(version, due)

    def _first_of_node(self) -> bool:
        given = self._session.assignment
        return given is not None and given.environment["LOCAL_RANK"] == "0"

    def _agree(self, new: bool) -> bool:
        """Whether it is true on any rank. All ranks must publish the same, in the same order.

        Values are compared in the first generation only: later, parameters that are the same by design may have drifted
        apart in the last bits, and readers get those of a node's first rank.
        """
        first = self._run.generation == 1
        mark = agreement.mark_of(b"".join(each.mark(first) for each in self._all.values()))
        rows = agreement.numbers_of_ranks(mark, new)
        self._run._check_interrupted()
        if others := [rank for rank, row in enumerate(rows) if row[0] != rows[0][0]]:
            raise KeepstepError(
                f"run.publish({', '.join(map(repr, self._all))}): rank {others[0]} would publish other tensors than "
                "rank 0. What ranks hold in parts must be DTensors; stages of a pipeline, and Megatron's slices of a "
                "tensor, cannot be put together. Save the state by run.checkpoint, and read that"
            )
        return any(row[1] for row in rows)

    def _publish(self, version: int, due: list[Publication]) -> None:
        if not due:
            return
        first = self._first_of_node()
        divided = self._run._shards.divided
        if not first and not divided:
            return
        self.wait_copied()
        copies: list[tuple[PublishedFile, dict[str, torch.Tensor]]] = []
        try:
            for each in due:
                held, others = each.held()
                metadata = {**others, "format": "pt", "keepstep.step": str(version)}
                file: PublishedFile | None = None
                rest: dict[str, torch.Tensor] = {}
                if first:
                    file = PublishedFile(each.name, version, each.layout(held, metadata))
                    copies.append((file, rest))
                _gather(held, file, rest)
            if divided:
                self._run._check_interrupted()  # what was gathered may not be complete then
        except BaseException:
            for file, _ in copies:
                file.close()
            raise
        if first:
            self._new = False
            self._copies = threading.Thread(target=self._copy, args=(copies,), name="keepstep-publish", daemon=True)
            self._copies.start()

    def wait_copied(self) -> None:
        """Called before protected state changes: waits until it is no longer read."""
        if self._copies is not None:
            self._copies.join()
            self._copies = None

    def _copy(self, copies: list[tuple[PublishedFile, dict[str, torch.Tensor]]]) -> None:
        for file, held in copies:
            for name, tensor in held.items():
                file.add(name, tensor)
            file.hand_over(self._session.engine)
            file.close()


def _gather(held: dict[str, torch.Tensor], file: PublishedFile | None, rest: dict[str, torch.Tensor]) -> None:
    """Writes what is divided among ranks, one tensor after another; all ranks take part. The `rest` is left over."""
    for name, tensor in held.items():
        if dtensor.is_dtensor(tensor):
            part: Any = tensor.detach()
            whole = part.full_tensor()
            if file is not None:
                file.add(name, whole)
        elif file is not None:
            # What is no parameter may change in the next forward pass, while a thread copies.
            rest[name] = tensor.detach() if isinstance(tensor, torch.nn.Parameter) else tensor.detach().clone()
