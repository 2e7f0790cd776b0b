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
from keepstep.checkpoint.safetensors import DTYPES, Layout, lay_out
from keepstep.publications import MAX_NAME_BYTES
from keepstep.torch.recovery import health
from keepstep.torch.tensors.dtensor import is_dtensor
from keepstep.torch.tensors.memory import dense

if TYPE_CHECKING:
    from keepstep.torch.runtime.run import Run

MAX_PUBLICATIONS = 64  # src/agent/publications/publication_service.h
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
        self._new = True  # this process has published nothing yet
        self._copies: threading.Thread | None = None

    def add(self, publication: Publication) -> None:
        what = f"run.publish({publication.name!r})"
        name = publication.name
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name.encode()) <= MAX_NAME_BYTES:
            raise KeepstepError(f"{what}: a printable name of 1 to {MAX_NAME_BYTES} bytes is needed")
        if type(publication.every_steps) is not int or publication.every_steps < 1:
            raise KeepstepError(
                f"{what}: every_steps={publication.every_steps!r}; a number of steps from 1 on is needed"
            )
        if len(self._all) >= MAX_PUBLICATIONS:
            raise KeepstepError(f"{what}: at most {MAX_PUBLICATIONS} names can be published")
        if publication.name in self._all:
            raise KeepstepError(f"{what}: it is published already in this entry; give this one another name")
        if not self._run._loops.first:
            raise KeepstepError(f"{what} comes too late: call it in every entry, before run.steps")
        held, _ = publication.held()
        known = {id(each) for module in self._run._registry.modules() for each in module.parameters()}
        for path, parameter in publication.module.named_parameters():
            if id(parameter) not in known:
                raise KeepstepError(f"{what}: '{path}' is not protected; publish what build() returned")
        if not held:
            raise KeepstepError(f"{what}: there is no tensor to publish")
        for path, tensor in held.items():
            if is_dtensor(tensor):
                raise KeepstepError(
                    f"{what}: '{path}' is divided among ranks; only what every rank has whole can be published. "
                    "Save it by run.checkpoint, and read that"
                )
            if str(tensor.dtype).removeprefix("torch.") not in DTYPES or tensor.layout is not torch.strided:
                raise KeepstepError(f"{what}: '{path}' ({tensor.dtype}, {tensor.layout}) has no place in safetensors")
        self._all[publication.name] = publication

    def clear(self) -> None:
        """The function was left; the next entry registers its own."""
        self._all.clear()

    def resume(self, version: int) -> None:
        """An entry begins after `version`: what was due may not have arrived, and a new node or start has nothing yet.

        The agent ignores a version that it has.
        """
        self._publish(version, [each for each in self._all.values() if self._new or version % each.every_steps == 0])

    def after(self, version: int) -> None:
        """All ranks committed `version`."""
        self._publish(version, [each for each in self._all.values() if version % each.every_steps == 0])

    def _publish(self, version: int, due: list[Publication]) -> None:
        given = self._session.assignment
        if not due or self._run.rehearsing or given is None or given.environment["LOCAL_RANK"] != "0":
            return
        self._new = False
        files = []
        for each in due:
            held, others = each.held()
            parameters = {one.untyped_storage().data_ptr() for one in each.module.parameters()}
            # What is no parameter may change in the next forward pass, while the thread copies.
            held = {
                name: tensor if tensor.untyped_storage().data_ptr() in parameters else tensor.clone()
                for name, tensor in held.items()
            }
            layout = lay_out(
                {name: (str(tensor.dtype).removeprefix("torch."), tensor.shape) for name, tensor in held.items()},
                {**others, "format": "pt", "keepstep.step": str(version)},
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
                if layout.bytes > health.available_bytes():
                    raise KeepstepError(f"{layout.bytes} bytes of memory are needed, and there are fewer")
                fd = os.memfd_create("keepstep-publication", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
                _open.add(fd)
                try:
                    _write(fd, layout.header, 0)
                    for each, tensor in held.items():
                        raw = dense(tensor.cpu()).reshape(-1).view(torch.uint8)
                        _write(fd, raw.numpy().data, layout.tensors[each].begin)
                    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
                    self._session.engine.tell_publication(name, version, fd)
                finally:
                    _open.discard(fd)
                    os.close(fd)
            except Exception as error:  # training goes on
                print(f"keepstep: step {version} of '{name}' was not published: {error}", file=sys.stderr)


_open: set[int] = set()  # a process that is forked meanwhile, for loading data, must not keep that memory


def _close_in_child() -> None:
    for fd in _open:
        os.close(fd)
    _open.clear()


os.register_at_fork(after_in_child=_close_in_child)


def _write(fd: int, data: bytes | memoryview, at: int) -> None:
    """Not through a mapping, which would keep the file from being sealed against writing."""
    left = memoryview(data)
    while left:
        done = os.pwrite(fd, left, at)
        left, at = left[done:], at + done
