"""The base class of a backend written in Python, which differs between releases of torch.

Newer ones let Python subclass `Backend`: a process group then owns the backend, as it owns Gloo's or NCCL's. Older ones
(2.11 to 2.13) only let Python subclass `ProcessGroup` itself; `torch.distributed` takes what a backend's creator
returns for the group, if it is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._C._distributed_c10d import Backend, ProcessGroup

if TYPE_CHECKING:
    BackendBase = Backend
else:

    class _GroupAsBackend(ProcessGroup):
        """A group that is its own backend. The base class keeps names in the backends registered with it: none here."""

        _name = _desc = ""

        def _set_group_name(self, name: str) -> None:
            self._name = name

        def _set_group_desc(self, desc: str) -> None:
            self._desc = desc

        def getGroupName(self) -> str:
            return self._name

        def getGroupDesc(self) -> str:
            return self._desc

        group_name = property(getGroupName)
        group_desc = property(getGroupDesc)

        @property
        def _device_types(self) -> list[torch.device]:
            return [torch.device("cpu")]

        def _get_backend(self, _device: Any) -> _GroupAsBackend:
            return self

    def _backend_base() -> type:
        try:
            type("Probe", (Backend,), {})(0, 1)
        except TypeError:  # "No constructor defined!"
            return _GroupAsBackend
        return Backend

    BackendBase = _backend_base()
