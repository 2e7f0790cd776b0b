"""DCP's StorageWriter for disk, S3 and memory: data, then `.metadata`, then the manifest that makes it a checkpoint."""

from __future__ import annotations

import dataclasses
import io
import logging
import os
import pickle
import re
import time
import uuid
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from keepstep import _checkpoint
from keepstep._errors import KeepstepError
from keepstep.checkpoint import destinations, owners, saving
from keepstep.torch.checkpoint import objects
from keepstep.torch.checkpoint.container import container_of
from keepstep.torch.checkpoint.layouts import dtype_name

_log = logging.getLogger(__name__)


@dataclass
class _Assignment:
    """What the coordinator tells a rank: where to write."""

    step: int
    rank: int
    token: int
    attempt: int
    node: int = 0  # where the save is completed, of a job on several nodes


class File(Protocol):
    """A file of a checkpoint that is being written, or written down: what `_checkpoint.FileWriter` is."""

    @property
    def size(self) -> int: ...
    def append(self, literal: bytes) -> None: ...
    def append_memory(self, address: int, bytes: int) -> None: ...
    def commit(self) -> _checkpoint.FileSums: ...


@dataclass
class _Written:
    """What a rank tells the coordinator of one item."""

    info: _StorageInfo
    dtype: str = ""  # of tensors, as all below
    shape: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()
    data: int = 0  # where in the file its elements begin
    sums: _checkpoint.FileSums | None = None  # of the file, with the first item in it


class Writer(StorageWriter):
    """Writes one checkpoint at a time into a namespace: ``dcp.save(state, storage_writer=Writer(url, step=120))``.

    `url`: a folder, ``file:///folder``, ``s3://bucket/prefix`` or ``memory://NAME`` (the memory server, which outlives
    the job) that belongs to this job: a second job is refused.
    `step`: its number; None: one more than the newest. ``dcp.save(..., checkpoint_id=130)`` works as well. `keep`: how
    many complete checkpoints to keep after a save, the newest ones, besides pinned ones; None: all. `max_age_s`:
    removes older ones too, but never the newest. `replace`: replaces a step that exists already, as a whole, instead of
    refusing it. `job`: the same text for every start of one job, so that the next start need not wait until this one is
    known to be gone; by default KEEPSTEP_JOB, or what torchrun and Slurm set. `drain`: of a destination in memory, the
    folder or S3 prefix to which the memory server copies complete checkpoints in the background; `drain_keep`: how many
    of them stay there, None: all.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        step: int | None = None,
        *,
        keep: int | None = None,
        max_age_s: float | None = None,
        replace: bool = False,
        job: str | None = None,
        drain: str | os.PathLike[str] | None = None,
        drain_keep: int | None = None,
    ) -> None:
        super().__init__()
        if step is not None and not 0 <= step < 10**12:
            raise KeepstepError(f"step={step}; a whole number from 0 on, of at most 12 digits, is needed")
        if keep is not None and keep < 1:
            raise KeepstepError(f"keep={keep}; at least 1 is needed, or None to keep all")
        self.url = destinations.url_of(url)
        if drain is not None:
            self.url = destinations.with_drain(self.url, drain, drain_keep)
        elif drain_keep is not None:
            raise KeepstepError(f"drain_keep={drain_keep} without a drain")
        self.step = step
        self.keep = keep
        self.max_age_s = max_age_s
        self.replace = replace
        self.job = owners.job_name() if job is None else job
        self.save_id = str(uuid.uuid4())
        self._planned: _Assignment | None = None
        self._owner: _checkpoint.Owner | None = None  # the coordinator's
        self._world = 1
        self._store: _checkpoint.Store | None = None
        destinations.open_store(self.url)  # what is wrong with the URL is told here

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_store": None, "_owner": None}  # dcp.async_save may hand it to a process of its own

    # ---- DCP's order of calls ----

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self.save_id = str(uuid.uuid4())
        self._planned = None
        if checkpoint_id is None:
            return
        found = re.fullmatch(r"(?:step-)?(\d{1,12})", str(checkpoint_id))
        if found is None:
            raise KeepstepError(
                f"checkpoint_id={checkpoint_id!r}; with a keepstep Writer it is the step: 120 or 'step-120'. "
                f"Where checkpoints lie ({self.url}) is said to the Writer"
            )
        self.step = int(found[1])

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("use_collectives", True):
            raise KeepstepError(
                "a keepstep Writer makes one checkpoint of all ranks; dcp.save(use_collectives=False) makes one a rank"
            )
        self._store = destinations.open_store(self.url)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        begun, node = self._begin()
        self._world = len(plans)
        planned = [_Assignment(begun.step, rank, begun.token, begun.attempt, node) for rank in range(len(plans))]
        self._planned = planned[0]
        return [dataclasses.replace(plan, storage_data=mine) for plan, mine in zip(plans, planned, strict=True)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        try:
            results = self._write(plan, planner)
        except _checkpoint.Error as error:
            raise KeepstepError(f"rank {plan.storage_data.rank}: {error}") from None
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        assert self._planned is not None
        metadata.version = getattr(filesystem, "CURRENT_DCP_VERSION", "1.0.0")
        metadata.storage_data = {
            result.index: result.storage_data.info for rank_results in results for result in rank_results
        }
        metadata.storage_meta = self.storage_meta()
        described = io.BytesIO()
        pickle.dump(metadata, described, protocol=4)
        layout, sums = _layout_of(metadata, results)
        try:
            manifest = _checkpoint.Manifest(
                step=self._planned.step, world=self._world, created_s=int(time.time()), job=self.job,
                token=self._planned.token, layout=layout, sums=sums, metadata=_checkpoint.sums_of(described.getvalue()),
            )  # fmt: skip
            self._complete(manifest, described.getvalue())
        except _checkpoint.Error as error:
            raise KeepstepError(str(error)) from None

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return re.fullmatch(r"(?:step-)?\d{1,12}", str(checkpoint_id)) is not None

    def storage_meta(self) -> StorageMeta | None:
        return StorageMeta(checkpoint_id=self.checkpoint_id, save_id=self.save_id)

    @property
    def checkpoint_id(self) -> str:
        """Where the checkpoint goes, for DCP's messages."""
        step = self._planned.step if self._planned is not None else self.step
        place = self.url.partition("?drain=")[0]
        return place if step is None else f"{place}/{_checkpoint.folder_of(step)}"

    # ---- what goes where: by this process itself, unless a subclass hands it over ----

    def _begin(self) -> tuple[saving.Begun, int]:
        """By the coordinator: what the save is called, and the node where it is completed."""
        self._owner, begun = saving.begin(self.url, self._opened(), self.job, self.step, self.replace)
        return begun, 0

    def _new_file(self, mine: _Assignment, expected_bytes: int) -> File:
        name = _checkpoint.data_file_name(mine.rank, 0, mine.token, mine.attempt)
        return _checkpoint.FileWriter(self._opened(), f"{_checkpoint.folder_of(mine.step)}/{name}", expected_bytes)

    def _end_file(self, mine: _Assignment, file: File) -> _checkpoint.FileSums:
        return file.commit()

    def _complete(self, manifest: _checkpoint.Manifest, metadata: bytes) -> None:
        """By the coordinator, when all files are there."""
        assert self._owner is not None
        catalog = _checkpoint.Catalog(self._opened())
        catalog.commit(self._owner, manifest, metadata, self.replace)
        try:
            catalog.prune(self._owner, self.keep or 0, self.max_age_s or 0.0)
        except _checkpoint.Error as error:  # the checkpoint is complete all the same
            _log.warning("%s: what is too old could not be removed: %s", self.checkpoint_id, error)

    # ---- one rank's file ----

    def _opened(self) -> _checkpoint.Store:
        if self._store is None:
            self._store = destinations.open_store(self.url)
        return self._store

    def _write(self, plan: SavePlan, planner: SavePlanner) -> list[WriteResult]:
        mine: _Assignment = plan.storage_data
        if not plan.items:
            return []
        name = _checkpoint.data_file_name(mine.rank, 0, mine.token, mine.attempt)
        expected = sum(_expected_bytes(item) for item in plan.items)
        writer = self._new_file(mine, expected)
        results = []
        # Objects first, so that they lie together: every rank that loads reads all of them.
        for item in sorted(plan.items, key=lambda item: item.type != WriteItemType.BYTE_IO):
            data = planner.resolve_data(item)
            if item.type == WriteItemType.BYTE_IO:
                written = _write_object(writer, name, item, data)
            else:
                written = _write_tensor(writer, name, item, data)
            results.append(WriteResult(item.index, written.info.length, written))
        results[0].storage_data.sums = self._end_file(mine, writer)
        return results


def _expected_bytes(item: WriteItem) -> int:
    """About; what is around it included."""
    if item.tensor_data is None:
        return 4096
    elements = 1
    for length in item.tensor_data.chunk.sizes:
        elements *= length
    return elements * item.tensor_data.properties.dtype.itemsize + 2048


def _write_object(writer: File, file: str, item: WriteItem, data: torch.Tensor | io.BytesIO) -> _Written:
    if not isinstance(data, io.BytesIO):
        raise KeepstepError(f"'{item.index.fqn}': the planner gave a {type(data).__name__} where bytes are due")
    objects.require_safe(item.index.fqn, data)
    at = writer.size
    writer.append(data.getvalue())
    return _Written(_StorageInfo(file, at, writer.size - at))


def _write_tensor(writer: File, file: str, item: WriteItem, data: torch.Tensor | io.BytesIO) -> _Written:
    name = item.index.fqn
    if not isinstance(data, torch.Tensor) or item.tensor_data is None:
        raise KeepstepError(f"'{name}': the planner gave a {type(data).__name__} where a tensor is due")
    plain = _plain(name, data)
    lengths = tuple(item.tensor_data.chunk.sizes)
    if tuple(plain.shape) != lengths:
        raise KeepstepError(f"'{name}': the plan has a part of {list(lengths)}, the tensor is {list(plain.shape)}")
    around = container_of(plain)
    at = writer.size
    writer.append(around.prefix)
    begins = writer.size
    writer.append_memory(plain.data_ptr(), plain.nbytes)
    writer.append(around.suffix)
    return _Written(
        _StorageInfo(file, at, writer.size - at),
        dtype=dtype_name(plain.dtype), shape=tuple(item.tensor_data.size), lengths=lengths, data=begins,
    )  # fmt: skip


def _plain(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Its elements in the memory of the host, in C order."""
    detached = tensor.detach()
    if type(detached) is not torch.Tensor:
        kind = type(tensor)
        raise KeepstepError(
            f"'{name}' is a {kind.__module__}.{kind.__qualname__}, which cannot be stored safely: to load it would "
            "take its class. Store the plain tensors that it is made of"
        )
    if detached.layout != torch.strided or detached.is_quantized or detached.device.type == "meta":
        what = "quantized" if detached.is_quantized else detached.device.type if detached.is_meta else detached.layout
        raise KeepstepError(f"'{name}' is {what}; a checkpoint holds dense tensors with elements (to_dense())")
    if _checkpoint.dtype_bytes(dtype_name(detached.dtype)) != detached.dtype.itemsize:
        raise KeepstepError(f"'{name}' is {detached.dtype}, which this version of keepstep cannot store")
    return detached.cpu().resolve_conj().resolve_neg().contiguous()


def _layout_of(
    metadata: Metadata, results: list[list[WriteResult]]
) -> tuple[_checkpoint.Layout, list[_checkpoint.FileSums]]:
    """What the manifest says; and the sums of its files."""
    layout = _checkpoint.Layout()
    paths: dict[str, tuple[str | int, ...]] = metadata.planner_data or {}
    numbers: dict[str, int] = {}
    sums: list[_checkpoint.FileSums] = []
    tensors: dict[str, tuple[_Written, list[_checkpoint.Part]]] = {}
    for rank_results in results:
        for result in rank_results:
            written: _Written = result.storage_data
            if written.sums is not None:
                numbers[written.info.relative_path] = len(sums)
                sums.append(written.sums)
            extent = _checkpoint.Extent(numbers[written.info.relative_path], written.info.offset, written.info.length)
            name = result.index.fqn
            if not written.dtype:
                layout.add_object(name, _checkpoint.ObjectEntry(paths.get(name, ()), extent))
                continue
            offsets = result.index.offset if result.index.offset is not None else [0] * len(written.shape)
            part = _checkpoint.Part(offsets, written.lengths, extent, written.data)
            tensors.setdefault(name, (written, []))[1].append(part)
    for name, (written, parts) in tensors.items():
        entry = _checkpoint.TensorEntry(written.dtype, written.shape, paths.get(name, ()), parts)
        layout.add_tensor(name, entry)
    layout.files = list(numbers)
    return layout, sums
