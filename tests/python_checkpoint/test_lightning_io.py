"""`KeepstepCheckpointIO` without a job: what comes back, what is refused, and what else it reads."""

from collections import OrderedDict

import pytest
import torch

from keepstep._errors import KeepstepError

pytest.importorskip("lightning")
from keepstep.integrations.lightning import KeepstepCheckpointIO


def checkpoint():
    optimizer = {"state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.randn(3, 2)}},
                 "param_groups": [{"lr": 0.1, "betas": (0.9, 0.999), "params": [0]}]}  # fmt: skip
    return {
        "epoch": 1, "global_step": 6,
        "state_dict": OrderedDict({"layer.weight": torch.randn(3, 2), "n": torch.ones(())}),
        "optimizer_states": [optimizer], "callbacks": {"Save{'a': 1}": {"best": torch.tensor(0.5), "path": "x/y.ckpt"}},
        "empty": {}, "none": None, "names": ["a", "b"],
    }  # fmt: skip


def assert_same(mine, theirs):
    assert type(mine) is type(theirs)
    if isinstance(mine, torch.Tensor):
        assert mine.dtype == theirs.dtype and torch.equal(mine, theirs)
    elif isinstance(mine, dict):
        assert list(mine) == list(theirs)
        for key in mine:
            assert_same(mine[key], theirs[key])
    elif isinstance(mine, list | tuple):
        assert len(mine) == len(theirs)
        for one, other in zip(mine, theirs, strict=True):
            assert_same(one, other)
    else:
        assert mine == theirs


def test_a_checkpoint_comes_back_as_it_was(tmp_path):
    io = KeepstepCheckpointIO()
    saved = checkpoint()
    io.save_checkpoint(saved, tmp_path / "a.ckpt")
    assert_same(io.load_checkpoint(tmp_path / "a.ckpt"), saved)
    again = checkpoint() | {"global_step": 3}  # an earlier step replaces a later one
    io.save_checkpoint(again, tmp_path / "a.ckpt")
    assert_same(io.load_checkpoint(tmp_path / "a.ckpt"), again)
    io.remove_checkpoint(tmp_path / "a.ckpt")
    assert not (tmp_path / "a.ckpt").exists()


def test_paths_go_under_a_destination(tmp_path):
    io = KeepstepCheckpointIO(tmp_path / "there")
    io.save_checkpoint(checkpoint(), tmp_path / "here" / "a.ckpt")
    assert (tmp_path / "there" / "a.ckpt" / "step-000000000000" / "manifest.json").exists()
    assert not (tmp_path / "here").exists()
    assert io.load_checkpoint(tmp_path / "here" / "a.ckpt")["epoch"] == 1


def test_files_of_torch_are_loaded_and_removed(tmp_path):
    torch.save({"epoch": 4}, tmp_path / "old.ckpt")
    io = KeepstepCheckpointIO()
    assert io.load_checkpoint(tmp_path / "old.ckpt") == {"epoch": 4}
    io.remove_checkpoint(tmp_path / "old.ckpt")
    assert not (tmp_path / "old.ckpt").exists()


class Strange:
    pass


def test_what_would_need_a_pickle_is_refused_by_name_and_leaves_nothing(tmp_path):
    io = KeepstepCheckpointIO()
    with pytest.raises(KeepstepError, match="Strange"):
        io.save_checkpoint(checkpoint() | {"hyper_parameters": Strange()}, tmp_path / "a.ckpt")
    with pytest.raises(KeepstepError, match="step 0 is not there"):
        io.load_checkpoint(tmp_path / "a.ckpt")
    with pytest.raises(KeepstepError, match="storage_options"):
        io.save_checkpoint({}, tmp_path / "b.ckpt", storage_options={"a": 1})
