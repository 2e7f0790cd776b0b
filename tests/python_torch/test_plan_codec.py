"""What ranks send each other of a save is read by an unpickler that knows DCP's classes only."""

import os
import pickle

import pytest
import torch
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

from keepstep._errors import KeepstepError
from keepstep.torch.checkpoint import Writer
from keepstep.torch.checkpoint.plan_codec import packed, unpacked
from keepstep.torch.checkpoint.snapshot import Small


@pytest.mark.parametrize("make", [FileSystemWriter, lambda path: Writer(f"file://{path}", step=7)])
def test_plans_and_results_come_back(tmp_path, make):
    state = {
        "model": {"weight": torch.ones(3, 4), "half": torch.zeros(2, dtype=torch.bfloat16)},
        "step": 7,
        "lr": [0.1],
    }
    planner = DefaultSavePlanner()
    writer = make(tmp_path)
    planner.set_up_planner(state, writer.storage_meta(), True)
    writer.set_up_storage_writer(True)
    local = writer.prepare_local_plan(planner.create_local_plan())
    plans, _ = planner.create_global_plan([local])
    plans = writer.prepare_global_plan(plans)
    results = writer.write_data(planner.finish_plan(plans[0]), planner).wait()
    for value in (Small({"a": 1}, {("a", "b"): 2}), None, [0, 1]):
        assert unpacked(packed(value)) == value
    for plan in (local, plans[0]):
        back = unpacked(packed(plan))
        assert (back.items, back.planner_data) == (plan.items, plan.planner_data)
    back = unpacked(packed(results))
    assert [(each.index, each.size_in_bytes) for each in back] == [(each.index, each.size_in_bytes) for each in results]
    error = unpacked(packed(KeepstepError("disk full")))
    assert isinstance(error, KeepstepError) and str(error) == "disk full"


@pytest.mark.parametrize("stranger", [os.system, eval, torch.load, pickle.loads, os.getcwd])
def test_anything_else_is_refused_by_name(stranger):
    with pytest.raises(KeepstepError, match="none of DCP's"):
        unpacked(pickle.dumps([stranger]))


@pytest.mark.parametrize("data", [b"", b"nothing", packed([1, 2, 3])[:-3]])
def test_what_is_broken_is_said_to_be(data):
    with pytest.raises(KeepstepError):
        unpacked(data)
