"""A ``CheckpointIO``: keepstep writes the checkpoints of `ModelCheckpoint`, ``trainer.save_checkpoint`` and
``fabric.save``.

A path is a destination that holds one checkpoint, in DCP's layout. Tensors lie there by their names, such as
``state_dict.layer.weight``; what is around them is one object.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from pathlib import PurePath
from typing import Any

import torch
from lightning.fabric.plugins.io.checkpoint_io import CheckpointIO
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata

from keepstep import KeepstepError, _checkpoint
from keepstep._session import Session, session_or_none
from keepstep.checkpoint import destinations
from keepstep.checkpoint.background.link import Link
from keepstep.torch.checkpoint import Reader, Writer
from keepstep.torch.checkpoint.handing_over import HandingOver
from keepstep.torch.checkpoint.layouts import dtype_of
from keepstep.torch.checkpoint.manager import _job_of
from keepstep.torch.checkpoint.snapshot_memory import Memory
from keepstep.torch.tensors.memory import dense

REST = "keepstep.rest"  # a checkpoint without its tensors
_TENSOR = "keepstep.tensor"
_PLAIN = ("callbacks", "loops", "lr_schedulers")
_STEP = 0  # of the one checkpoint of a path
_FROM_THE_START = 0  # nobody's state goes on from it, so no generation counts


class KeepstepCheckpointIO(CheckpointIO):
    """``Trainer(plugins=KeepstepCheckpointIO())``, ``Fabric(plugins=KeepstepCheckpointIO())``.

    A save returns when the state is copied and handed over; the node's background writer writes it, also if this
    process dies. It is complete or does not exist. One is under way at a time. Without ``keepstep run`` it is written
    at once. Files of ``torch.save`` are loaded as before.

    Args:
        url: where checkpoints go, under the last part of their path: a folder, or ``s3://bucket/prefix``. None: a path
            is a folder of its own.

    Raises:
        KeepstepError: something cannot be stored; says what. A write that fails later is printed and journalled.
    """

    def __init__(self, url: str | os.PathLike[str] | None = None) -> None:
        self._base = None if url is None else destinations.url_of(url)
        self._plain = TorchCheckpointIO()
        self._writing: threading.Thread | None = None
        if self._base is not None:
            destinations.open_store(self._base)  # what is wrong with it is told here

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        if storage_options is not None:
            raise KeepstepError("save_checkpoint(storage_options=...): a KeepstepCheckpointIO has none; leave it out")
        self.wait()
        url = self._url_of(path)
        tensors: dict[str, torch.Tensor] = {}
        rest = _without_tensors(checkpoint, (), tensors)
        session = session_or_none()
        if session is None or not session.welcome.background_writer:
            _write(Writer(url, _STEP, replace=True), {**tensors, REST: rest})
        else:
            self._hand_over(session, url, tensors, rest)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """On the CPU, wherever it was saved from."""
        self.wait()
        if self._is_file(path):
            loaded: dict[str, Any] = self._plain.load_checkpoint(path, weights_only=weights_only)
            return loaded
        reader = Reader(self._url_of(path), _STEP)
        metadata = reader.open()
        found = reader._found()
        if REST not in found.objects:
            raise KeepstepError(f"{reader.url}: no KeepstepCheckpointIO wrote this checkpoint; load it with DCP")
        room = {name: torch.empty(each.shape, dtype=dtype_of(each.dtype)) for name, each in found.tensors.items()}
        state = _read(reader, metadata, {**room, REST: None})
        whole: dict[str, Any] = _with_tensors(state[REST], state)
        return whole

    def remove_checkpoint(self, path: Any) -> None:
        self.wait()
        if self._is_file(path):
            self._plain.remove_checkpoint(path)
            return
        store = destinations.open_store(self._url_of(path))
        if any(info.step == _STEP for info in _checkpoint.Catalog(store).checkpoints()):
            _checkpoint.Catalog(store).remove(_STEP)  # from here on there is none
        for each in store.list(""):
            store.remove(each.key)
        if self._url_of(path).startswith("file://"):
            self._plain.remove_checkpoint(path)  # the folder itself

    def wait(self) -> None:
        """Returns when nothing is being written any more."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.join()

    def teardown(self) -> None:
        self.wait()

    # ---- ours ----

    def _url_of(self, path: Any) -> str:
        if self._base is None or str(path).startswith(self._base):
            return destinations.url_of(path)
        place, question, options = self._base.partition("?")
        return f"{place.rstrip('/')}/{PurePath(str(path)).name}{question}{options}"

    def _is_file(self, path: Any) -> bool:
        return "://" not in str(path) and os.path.isfile(path)

    def _hand_over(self, session: Session, url: str, tensors: dict[str, torch.Tensor], rest: Any) -> None:
        memory = Memory(tensors)
        for name, tensor in tensors.items():
            memory.tensors[name].copy_(tensor)
        job = _job_of(session)
        link = Link(session.welcome.background_writer, url, job)
        link.await_free(0, _STEP)  # what a process that died had handed over
        writer = HandingOver(url, _STEP, job, link, _FROM_THE_START)
        writer.memory = memory
        _write(writer, {**memory.tensors, REST: rest})
        # No daemon: a script that ends waits for it.
        self._writing = threading.Thread(
            target=_await_complete, args=(session, url, link, writer.attempt, memory), name="keepstep-checkpoint"
        )
        self._writing.start()


def _write(writer: Writer, state: dict[str, Any]) -> None:
    """What ``dcp.save`` does, in this process alone. Handed over, it is not complete yet."""
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(state, writer.storage_meta(), True)
    writer.set_up_storage_writer(True)
    plans, metadata = planner.create_global_plan([writer.prepare_local_plan(planner.create_local_plan())])
    [plan] = writer.prepare_global_plan(plans)
    results = writer.write_data(planner.finish_plan(plan), planner).wait()
    writer.finish(metadata, [results])


def _read(reader: Reader, metadata: Metadata, wanted: dict[str, Any]) -> dict[str, Any]:
    """What ``dcp.load`` does, in this process alone."""
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(wanted, metadata, True)
    reader.set_up_storage_reader(metadata, True)
    [plan] = planner.create_global_plan([reader.prepare_local_plan(planner.create_local_plan())])
    reader.read_data(planner.finish_plan(plan), planner).wait()
    return planner.state_dict


def _await_complete(session: Session, url: str, link: Link, attempt: int, memory: Memory) -> None:
    try:
        link.await_file()
        link.await_complete()
        link.told(attempt)
        link.close()
    except KeepstepError as error:
        because = f"a checkpoint could not be saved to {url}: {error}"
        print(f"keepstep: {because}; training goes on", file=sys.stderr)
        session.note("not_saved", session.engine.version, because, where=url)
    finally:
        del memory  # which is read until here


def _without_tensors(value: Any, path: tuple[str, ...], tensors: dict[str, torch.Tensor]) -> Any:
    """`value` with names instead of its tensors, which are added to `tensors`. What counters and callbacks have as
    tensors without a dimension stays."""
    if isinstance(value, torch.Tensor) and path and (value.dim() > 0 or path[0] not in _PLAIN):
        name = ".".join(path)
        if name in tensors:
            raise KeepstepError(f"two tensors of the checkpoint are called '{name}'; rename one")
        tensors[name] = dense(value.detach())
        return {_TENSOR: name}
    inner = functools.partial(_without_tensors, tensors=tensors)
    if isinstance(value, dict):
        made = {key: inner(each, (*path, str(key))) for key, each in value.items()}
        return made if type(value) is dict else type(value)(made)
    if type(value) in (list, tuple):
        return type(value)(inner(each, (*path, str(index))) for index, each in enumerate(value))
    return value


def _with_tensors(value: Any, tensors: dict[str, Any]) -> Any:
    inner = functools.partial(_with_tensors, tensors=tensors)
    if isinstance(value, dict):
        if value.keys() == {_TENSOR}:
            return tensors[value[_TENSOR]]
        made = {key: inner(each) for key, each in value.items()}
        return made if type(value) is dict else type(value)(made)
    if type(value) in (list, tuple):
        return type(value)(inner(each) for each in value)
    return value
