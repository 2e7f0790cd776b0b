"""DCP's StorageReader for disk and S3: reads only the chunks that a rank needs, checked, directly into its tensors."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from keepstep import _checkpoint
from keepstep._errors import KeepstepError
from keepstep.checkpoint import destinations
from keepstep.torch.checkpoint import objects, plain
from keepstep.torch.checkpoint.layouts import dtype_of, metadata_of

_log = logging.getLogger(__name__)
_BATCH_BYTES = 256 << 20  # of tensors that cannot be read into directly

_Box = tuple[int, int, int, Sequence[int], Sequence[int], Sequence[int], int, Sequence[int]]


class Reader(StorageReader):
    """Reads one checkpoint: ``dcp.load(state, storage_reader=Reader(url))``.

    `url`: the URL of a Writer, or a folder with one checkpoint, ours or DCP's own. `step`: None for the newest complete
    one; ``reader.step`` says afterwards which it was. `others`: further destinations with the same checkpoint, used for
    chunks that are corrupt or missing in the first. `threads`: concurrent reads.

    Nothing from the checkpoint is executed: DCP's `.metadata` is read as data, and objects only as far as torch.load's
    ``weights_only`` allows.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        step: int | None = None,
        *,
        others: Sequence[str | os.PathLike[str]] = (),
        threads: int = 4,
    ) -> None:
        super().__init__()
        self.url = destinations.url_of(url)
        self.step = step
        self._wanted = step
        self._others = [destinations.open_store(other) for other in others]
        self._threads = threads
        self._opened: destinations.Opened | None = None
        self._failure: Exception | None = None
        self._parts: dict[tuple[str, tuple[int, ...]], _checkpoint.Part] = {}
        self._rank = 0

    # ---- DCP's order of calls ----

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self._opened = None
        self._parts = {}
        self.step = self._wanted
        if checkpoint_id is not None:
            text = str(checkpoint_id).removeprefix("step-")
            if not text.isdigit():
                raise KeepstepError(
                    f"checkpoint_id={checkpoint_id!r}; with a keepstep Reader it is the step: 120 or 'step-120'"
                )
            self.step = self._wanted = int(text)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Errors of `open` are kept for `set_up_storage_reader`: DCP takes an error here for another kind of
        checkpoint, and up to torch 2.11 hides it."""
        self._failure = None
        try:
            return self.open()
        except Exception as error:
            self._failure = error
            return Metadata({})

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if self._failure is not None:
            raise self._failure
        self._rank = kwargs.get("rank", 0)
        self._parts = {
            (name, tuple(part.offsets)): part for name, tensor in self._found().tensors.items() for part in tensor.parts
        }

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return dataclasses.replace(plan, storage_data=(self._rank, self.step, self._identity()))

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Each rank has searched for the newest one by itself."""
        first_rank, first_step, first = plans[0].storage_data
        for plan in plans[1:]:
            rank, step, identity = plan.storage_data
            if identity != first:
                raise KeepstepError(
                    f"ranks found different checkpoints in {self.url}: rank {first_rank} step {first_step}, rank "
                    f"{rank} step {step}; one was completed meanwhile. Load again, or say which: Reader(url, step=...)"
                )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        try:
            if self._found().manifest is None:
                self._read_plain(plan, planner)
            else:
                self._read(plan, planner)
        except _checkpoint.Error as error:
            raise KeepstepError(str(error)) from None
        future: Future[None] = Future()
        future.set_result(None)
        return future

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return str(checkpoint_id).removeprefix("step-").isdigit()

    @property
    def checkpoint_id(self) -> str:
        """The checkpoint's location, for DCP's messages."""
        return self.url if self._opened is None else f"{self.url}/{self._opened.folder}".rstrip("/")

    # ---- ours ----

    def open(self) -> Metadata:
        """Finds the checkpoint and what is in it. KeepstepError: there is none, or it cannot be read."""
        self._opened = destinations.open_checkpoint(self.url, self._wanted)
        self.step = self._opened.step
        for reason in self._opened.skipped:
            _log.warning("%s: %s", self._opened.words, reason)
        metadata = metadata_of(self._opened.layout)
        metadata.storage_meta = StorageMeta(checkpoint_id=self.checkpoint_id)
        return metadata

    def _found(self) -> destinations.Opened:
        if self._opened is None:
            raise KeepstepError("read_metadata comes first")
        return self._opened

    def _identity(self) -> str:
        manifest = self._found().manifest
        return "" if manifest is None else f"{manifest.step} {manifest.token} {manifest.metadata.whole}"

    def _read(self, plan: LoadPlan, planner: LoadPlanner) -> None:
        opened = self._found()
        files = opened.files(self._others)
        boxes: list[_Box] = []
        after: list[Callable[[], None]] = []  # what is to be done with what was read
        batch_bytes = 0

        def read_batch() -> None:
            nonlocal batch_bytes
            _, _, elsewhere = files.read_boxes(boxes, self._threads)
            if elsewhere:
                _log.warning("%s: %d chunks had to be read elsewhere", opened.words, elsewhere)
            for act in after:
                act()
            boxes.clear()
            after.clear()
            batch_bytes = 0

        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                extent = opened.objects[item.storage_index.fqn].extent
                held = ctypes.create_string_buffer(max(1, extent.bytes))
                address = ctypes.addressof(held)
                boxes.append((extent.file, extent.offset, 1, [extent.bytes], [0], [extent.bytes], address, [1]))
                after.append(functools.partial(self._put_object, planner, item, held))
                batch_bytes += extent.bytes
            else:
                dtype = opened.tensors[item.storage_index.fqn].dtype
                target = planner.resolve_tensor(item).detach()
                _require_size(item, target)
                is_memory = _is_memory(target, dtype)
                memory = target if is_memory else torch.empty(item.lengths, dtype=dtype_of(dtype))
                boxes.append(_box(self._part(item.storage_index), item, memory))
                after.append(functools.partial(_put_tensor, planner, item, target, memory))
                batch_bytes += 0 if is_memory else memory.nbytes
            if batch_bytes >= _BATCH_BYTES:
                read_batch()
        read_batch()

    def _put_object(self, planner: LoadPlanner, item: ReadItem, held: ctypes.Array[ctypes.c_char]) -> None:
        planner.load_bytes(item, objects.made_safe(item.storage_index.fqn, self._found().words, held.raw))

    def _part(self, index: MetadataIndex) -> _checkpoint.Part:
        return self._parts[(index.fqn, tuple(index.offset or ()))]

    def _read_plain(self, plan: LoadPlan, planner: LoadPlanner) -> None:
        """What DCP itself wrote: each item as torch.save wrote it, without sums."""
        opened = self._found()
        for item in plan.items:
            index = item.storage_index
            is_object = item.type == LoadItemType.BYTE_IO
            extent = opened.objects[index.fqn].extent if is_object else self._part(index).extent
            if is_object:
                data = plain.item_bytes(opened, extent)
                planner.load_bytes(item, objects.made_safe(index.fqn, opened.words, data))
                continue
            saved = plain.tensor_of(opened, index.fqn, extent)
            part = narrow_tensor_by_index(saved, item.storage_offsets, item.lengths)
            target = planner.resolve_tensor(item).detach()
            _require_size(item, target)
            target.copy_(part)
            planner.commit_tensor(item, target)


def _put_tensor(planner: LoadPlanner, item: ReadItem, target: torch.Tensor, memory: torch.Tensor) -> None:
    if memory is not target:
        target.copy_(memory)
    planner.commit_tensor(item, target)


def _require_size(item: ReadItem, target: torch.Tensor) -> None:
    if target.size() != item.lengths:
        raise KeepstepError(
            f"'{item.storage_index.fqn}': the planner gave a tensor of {list(target.shape)} for a part of "
            f"{list(item.lengths)}"
        )


def _is_memory(tensor: torch.Tensor, dtype: str) -> bool:
    """Whether stored elements can be put right into it."""
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and str(tensor.dtype) == f"torch.{dtype}"
        and not tensor.is_conj()
        and not tensor.is_neg()
        and all(stride > 0 for stride, length in zip(tensor.stride(), tensor.shape, strict=True) if length > 1)
        and (tensor.dim() == 0 or tensor.shape[-1] <= 1 or tensor.stride(-1) == 1)
    )


def _box(part: _checkpoint.Part, item: ReadItem, memory: torch.Tensor) -> _Box:
    width = memory.element_size()
    assert part.data is not None  # a manifest has it of every part
    return (
        part.extent.file, part.data, width, part.lengths, tuple(item.storage_offsets), tuple(item.lengths),
        memory.data_ptr(), [stride * width for stride in memory.stride()],
    )  # fmt: skip
