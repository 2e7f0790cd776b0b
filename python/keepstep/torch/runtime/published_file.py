"""One published version: a safetensors file in new memory, which is sealed when it is complete."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from keepstep import _engine
from keepstep._errors import KeepstepError
from keepstep.checkpoint.safetensors import Layout
from keepstep.torch.recovery import health
from keepstep.torch.tensors.memory import dense

_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class PublishedFile:
    """`version` of the publication `name`. Used by one thread at a time.

    If something fails, standard error says so, the file is given up, and training goes on.
    """

    def __init__(self, name: str, version: int, layout: Layout) -> None:
        self._name = name
        self._version = version
        self._layout = layout
        self._fd: int | None = None
        with self._given_up_on_error():
            if layout.bytes > health.available_bytes():
                raise KeepstepError(f"{layout.bytes} bytes of memory are needed, and there are fewer")
            self._fd = os.memfd_create("keepstep-publication", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            _open.add(self._fd)
            _write(self._fd, layout.header, 0)

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Writes a whole tensor, from any device."""
        if self._fd is not None:
            with self._given_up_on_error():
                raw = dense(tensor.cpu()).reshape(-1).view(torch.uint8)
                _write(self._fd, raw.numpy().data, self._layout.tensors[name].begin)

    def hand_over(self, engine: _engine.Engine) -> None:
        """All tensors are there: seals the file, and gives it to the agent."""
        if self._fd is not None:
            with self._given_up_on_error():
                fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, _SEALS)
                engine.tell_publication(self._name, self._version, self._fd)

    def close(self) -> None:
        """Frees the memory, unless the agent has it."""
        if self._fd is not None:
            _open.discard(self._fd)
            os.close(self._fd)
            self._fd = None

    @contextmanager
    def _given_up_on_error(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            print(f"keepstep: step {self._version} of '{self._name}' was not published: {error}", file=sys.stderr)
            self.close()


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
