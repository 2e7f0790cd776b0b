"""Random shardings, 1-D, 2-D and uneven, from N ranks to M: what a rank gets is what DCP's own reader gives it.

Each rank's part of DCP's protocol is played in turn, in one process, as dcp.save and dcp.load play it with collectives.
"""

import os
import random

import pytest
import torch
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from keepstep import _checkpoint
from keepstep.checkpoint.owners import let_go
from keepstep.torch.checkpoint import Reader, Writer

SEED = int(os.environ.get("SEED", "0")) or random.SystemRandom().randrange(1, 10**9)
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.float8_e5m2)


def cuts(chooser, length, pieces):
    """`pieces` ranges that make up [0, length): even as DTensor cuts (the last ones may be empty), or anyhow."""
    if chooser.random() < 0.5:
        each = -(-length // pieces)
        ends = [min(length, each * (i + 1)) for i in range(pieces)]
    else:
        ends = [*sorted(chooser.randint(0, length) for _ in range(pieces - 1)), length]
    return list(zip([0, *ends[:-1]], ends, strict=True))


def sharding(chooser, shape, ranks):
    """A box of each rank, (offsets, lengths): along no, one or two dimensions."""
    boxes = [([0] * len(shape), list(shape)) for _ in range(ranks)]
    if not shape or chooser.random() < 0.1:
        return boxes[:1] + [None] * (ranks - 1)  # one rank has it all
    columns = chooser.choice([d for d in range(1, ranks + 1) if ranks % d == 0]) if len(shape) > 1 else 1
    first, second = chooser.sample(range(len(shape)), 2) if len(shape) > 1 else (0, 0)
    rows = cuts(chooser, shape[first], ranks // columns)
    if columns > 1:
        across = cuts(chooser, shape[second], columns)
    for rank, (offsets, lengths) in enumerate(boxes):
        begin, end = rows[rank // columns]
        offsets[first], lengths[first] = begin, end - begin
        if columns > 1:
            begin, end = across[rank % columns]
            offsets[second], lengths[second] = begin, end - begin
    # A rank without elements has nothing to save: several of them would have one place.
    return [box if all(box[1]) else None for box in boxes]


def slices(box):
    return tuple(slice(at, at + length) for at, length in zip(*box, strict=True))


class Saver(SavePlanner):
    """One rank's parts."""

    def __init__(self, tensors, boxes):
        self.tensors, self.boxes = tensors, boxes

    def set_up_planner(self, state_dict, storage_meta=None, is_coordinator=False): ...

    def create_local_plan(self):
        return SavePlan([
            WriteItem(
                MetadataIndex(name, torch.Size(box[0])), WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    ChunkStorageMetadata(torch.Size(box[0]), torch.Size(box[1])),
                    TensorProperties(dtype=self.tensors[name].dtype), self.tensors[name].size(),
                ),
            )
            for name, box in self.boxes.items() if box is not None
        ])  # fmt: skip

    def create_global_plan(self, all_plans): ...

    def finish_plan(self, new_plan):
        return new_plan

    def resolve_data(self, item):
        return self.tensors[item.index.fqn][slices(self.boxes[item.index.fqn])]


class Loader(LoadPlanner):
    """One rank's parts, into memory that is contiguous, or turned around, or of another dtype."""

    def __init__(self, metadata, boxes, chooser):
        self.metadata, self.boxes = metadata, boxes
        self.parts = {}
        for name, box in boxes.items():
            if box is None:
                continue
            dtype = metadata.state_dict_metadata[name].properties.dtype
            part = torch.zeros(box[1], dtype=dtype)
            if len(box[1]) > 1 and chooser.random() < 0.3:
                part = torch.zeros(box[1][::-1], dtype=dtype).permute(*range(len(box[1]))[::-1])
            elif dtype == torch.float32 and chooser.random() < 0.3:
                part = part.double()
            self.parts[name] = part

    def set_up_planner(self, state_dict, metadata=None, is_coordinator=False): ...

    def create_local_plan(self):
        return LoadPlan([
            item
            for name, box in self.boxes.items() if box is not None
            for item in create_read_items_for_chunk_list(
                name, self.metadata.state_dict_metadata[name],
                [ChunkStorageMetadata(torch.Size(box[0]), torch.Size(box[1]))],
            )
        ])  # fmt: skip

    def create_global_plan(self, global_plan): ...

    def finish_plan(self, central_plan):
        return central_plan

    def load_bytes(self, read_item, value): ...

    def resolve_tensor(self, item):
        part = self.parts[item.dest_index.fqn]
        return part[slices((item.dest_offsets, item.lengths))]

    def commit_tensor(self, read_item, tensor): ...


def saved_by(make_writer, tensors, shardings, ranks):
    writers = [make_writer() for _ in range(ranks)]
    planners = [Saver(tensors, {name: boxes[rank] for name, boxes in shardings.items()}) for rank in range(ranks)]
    for rank, writer in enumerate(writers):
        writer.set_up_storage_writer(rank == 0, rank=rank, use_collectives=True)
    plans = [
        writer.prepare_local_plan(planner.create_local_plan())
        for writer, planner in zip(writers, planners, strict=True)
    ]
    plans, metadata = create_default_global_save_plan(plans)
    plans = writers[0].prepare_global_plan(plans)
    results = [
        writer.write_data(plan, planner).wait() for writer, plan, planner in zip(writers, plans, planners, strict=True)
    ]
    writers[0].finish(metadata, results)


def loaded_by(make_reader, shardings, ranks, seed):
    everything = []
    for rank in range(ranks):
        reader = make_reader()
        metadata = reader.read_metadata()
        reader.set_up_storage_reader(metadata, rank == 0, rank=rank, use_collectives=True)
        boxes = {name: boxes[rank] for name, boxes in shardings.items()}
        planner = Loader(metadata, boxes, random.Random(seed + rank))
        plan = reader.prepare_local_plan(planner.create_local_plan())
        (plan,) = reader.prepare_global_plan([plan])
        reader.read_data(plan, planner).wait()
        everything.append(planner.parts)
    return everything


def bits(tensor):
    return tensor.contiguous().view(-1).view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)


def one_round(folder, seed):
    chooser = random.Random(seed)
    torch.manual_seed(seed)
    tensors = {}
    for i in range(chooser.randint(1, 4)):
        shape = [chooser.randint(1, 40) for _ in range(chooser.randint(0, 3))]
        if i == 0 and chooser.random() < 0.3:
            shape = [chooser.randint(1, 1500), chooser.randint(1, 1500)]  # over several chunks
        dtype = chooser.choice(DTYPES)
        tensors[f"layer.{i}"] = (torch.randn(shape) * 50).to(dtype)
    before, after = chooser.randint(1, 8), chooser.randint(1, 8)
    cut_before = {name: sharding(chooser, list(tensor.shape), before) for name, tensor in tensors.items()}
    cut_after = {name: sharding(chooser, list(tensor.shape), after) for name, tensor in tensors.items()}
    saved_by(lambda: Writer(folder / "ours", 1), tensors, cut_before, before)
    let_go()
    saved_by(lambda: FileSystemWriter(folder / "dcp", sync_files=False), tensors, cut_before, before)
    of_us = folder / "ours" / _checkpoint.folder_of(1)
    ways = {
        "ours by ours": lambda: Reader(folder / "ours", threads=chooser.randint(1, 3)),
        "ours by DCP": lambda: FileSystemReader(of_us),
        "DCP's by ours": lambda: Reader(folder / "dcp"),
    }
    expected = loaded_by(lambda: FileSystemReader(folder / "dcp"), cut_after, after, seed)
    for rank, parts in enumerate(expected):
        for name, part in parts.items():
            wanted = tensors[name][slices(cut_after[name][rank])].to(part.dtype)
            assert torch.equal(bits(part), bits(wanted))
    for way, make_reader in ways.items():
        found = loaded_by(make_reader, cut_after, after, seed)
        for rank in range(after):
            for name, part in expected[rank].items():
                assert torch.equal(bits(found[rank][name]), bits(part)), (way, rank, name, before, after)


def rounds(tmp_path, count):
    for i in range(count):
        try:
            one_round(tmp_path / str(i), SEED + i)
        except BaseException:
            print(f"\nSEED={SEED + i} pytest {__file__}")
            raise


def test_random_shardings_load_as_dcp_loads_them(tmp_path):
    rounds(tmp_path, 6)


@pytest.mark.long
def test_many_random_shardings_load_as_dcp_loads_them(tmp_path):
    rounds(tmp_path, 400)


def test_ranks_that_found_different_checkpoints_are_told(tmp_path):
    tensors = {"a": torch.arange(6.0)}
    for step in (1, 2):
        saved_by(lambda step=step: Writer(tmp_path, step), tensors, {"a": [([0], [6])]}, 1)
    let_go()
    plans = []
    for rank, step in enumerate((1, 2)):
        reader = Reader(tmp_path, step)
        reader.set_up_storage_reader(reader.read_metadata(), rank == 0, rank=rank)
        plans.append(reader.prepare_local_plan(LoadPlan([])))
    with pytest.raises(RuntimeError, match="rank 0 step 1, rank 1 step 2; one was completed meanwhile"):
        reader.prepare_global_plan(plans)
