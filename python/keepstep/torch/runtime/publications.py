"""``run.publish``: committed weights for processes that are no ranks (docs/design/publications.md).

The first rank of each node copies them into a safetensors file in new memory, in a thread, while the next step
computes; seals it, so that it can never change; and hands it to the agent, which outlives this process.
"""

from __future__ import annotations

import fcntl
import os
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from keepstep._errors import KeepstepError
from keepstep.publications.safetensors import DTYPES, Layout, lay_out
from keepstep.torch.tensors.dtensor import is_dtensor
from keepstep.torch.tensors.memory import dense

if TYPE_CHECKING:
    from keepstep.torch.runtime.run import Run

MAX_NAME_BYTES = 100  # src/messages/publication_messages.h
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@dataclass(frozen=True)
class Publication:
    name: str
    module: torch.nn.Module
    every_steps: int
    only_trained: bool

    def held(self) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
        """The live tensors by name; and the other names of tied ones, each with the name that it is under."""
        frozen = {name for name, each in self.module.named_parameters(remove_duplicate=False) if not each.requires_grad}
        found: dict[str, torch.Tensor] = {}
        others: dict[str, str] = {}
        first: dict[tuple[int, torch.Size, tuple[int, ...]], str] = {}
        for name, tensor in self.module.state_dict().items():
            if not isinstance(tensor, torch.Tensor) or (self.only_trained and name in frozen):
                continue
            same = (tensor.data_ptr(), tensor.shape, tensor.stride())
            if tensor.numel() and same in first:
                others[name] = first[same]
                continue
            first[same] = name
            found[name] = tensor.detach()
        return found, others


class Publications:
    """Of one process; what is registered belongs to one entry of the training function. For the main thread."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._session = run._session
        self._all: dict[str, Publication] = {}
        self._copies: threading.Thread | None = None

    def add(self, publication: Publication) -> None:
        what = f"run.publish({publication.name!r})"
        if not 0 < len(publication.name.encode()) <= MAX_NAME_BYTES or not publication.name.isprintable():
            raise KeepstepError(f"{what}: a printable name of 1 to {MAX_NAME_BYTES} bytes is needed")
        if publication.every_steps < 1:
            raise KeepstepError(f"{what}: every_steps={publication.every_steps}; at least 1")
        if publication.name in self._all:
            raise KeepstepError(f"{what}: it is published already in this entry; give this one another name")
        if not self._run._loops.first:
            raise KeepstepError(f"{what} comes too late: call it in every entry, before run.steps")
        held, _ = publication.held()
        if not held:
            raise KeepstepError(f"{what}: there is no tensor to publish")
        for name, tensor in held.items():
            if is_dtensor(tensor):
                raise KeepstepError(
                    f"{what}: '{name}' is divided among ranks; only what every rank has whole can be published. "
                    "Save it by run.checkpoint, and read that"
                )
            if str(tensor.dtype).removeprefix("torch.") not in DTYPES or tensor.layout is not torch.strided:
                raise KeepstepError(f"{what}: '{name}' ({tensor.dtype}, {tensor.layout}) has no place in safetensors")
        self._all[publication.name] = publication

    def clear(self) -> None:
        """The function was left; the next entry registers its own."""
        self._all.clear()

    def resume(self, version: int) -> None:
        """An entry begins after `version`: what was due then may not have arrived. The agent knows what it has."""
        self.after(version)

    def after(self, version: int) -> None:
        """All ranks committed `version`."""
        due = [each for each in self._all.values() if version % each.every_steps == 0]
        given = self._session.assignment
        if not due or self._run.rehearsing or given is None or given.environment["LOCAL_RANK"] != "0":
            return
        files = []
        for each in due:
            held, others = each.held()
            parameters = {id(one.untyped_storage()) for one in each.module.parameters()}
            # What is no parameter may change in the next forward pass, while the thread copies.
            held = {
                name: tensor if id(tensor.untyped_storage()) in parameters else tensor.clone()
                for name, tensor in held.items()
            }
            layout = lay_out(
                {name: (str(tensor.dtype).removeprefix("torch."), tensor.shape) for name, tensor in held.items()},
                {"format": "pt", "keepstep.step": str(version), **others},
            )
            files.append((each.name, layout, held))
        self.wait_copied()
        self._copies = threading.Thread(target=self._copy, args=(version, files), name="keepstep-publish", daemon=True)
        self._copies.start()

    def wait_copied(self) -> None:
        """Called before protected state changes: waits until it is no longer read."""
        if self._copies is not None:
            self._copies.join()
            self._copies = None

    def _copy(self, version: int, files: list[tuple[str, Layout, dict[str, torch.Tensor]]]) -> None:
        for name, layout, held in files:
            try:
                fd = os.memfd_create("keepstep-publication", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
                try:
                    _write(fd, layout.header, 0)
                    for each, tensor in held.items():
                        raw = dense(tensor.cpu()).reshape(-1).view(torch.uint8)
                        _write(fd, raw.numpy().data, layout.tensors[each].begin)
                    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
                    self._session.engine.tell_publication(name, version, self._session.functions, fd)
                finally:
                    os.close(fd)
            except Exception as error:  # training goes on
                print(f"keepstep: step {version} of '{name}' was not published: {error}", file=sys.stderr)


def _write(fd: int, data: bytes | memoryview, at: int) -> None:
    """Not through a mapping: so missing memory is an error, not a signal, and the file can be sealed."""
    left = memoryview(data)
    while left:
        done = os.pwrite(fd, left, at)
        left, at = left[done:], at + done
