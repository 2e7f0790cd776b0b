"""Tensors inside lists and dicts of a state travel to a process that does not have them yet."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorProperties, TensorStorageMetadata

from keepstep import KeepstepError
from keepstep.torch.checkpoint import state_dict
from keepstep.torch.sharded.layout import ShardLayout
from keepstep.torch.state.registry import Registry, manifest_json
from keepstep.torch.state.update import Snapshot


class Preconditioned(torch.optim.Optimizer):
    """Keeps lists as SOAP does: of tensors, with empty places, and None that becomes a list."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1, "weights": [1.0, torch.tensor([2.0])]})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["GG"] = [torch.zeros(n, n) if n > 1 else [] for n in parameter.shape]
                    state["Q"] = None
                for number, matrix in enumerate(state["GG"]):
                    if len(matrix):
                        matrix.add_(number + 1.5)
                state["Q"] = [None if len(matrix) == 0 else (matrix @ matrix).t() for matrix in state["GG"]]
                state["turned"] = torch.arange(6.0).reshape(2, 3).t()
                state["by_name"] = {"left": (parameter.detach() * 2, 3), 7: "seven"}


class Callback:
    """What a trainer's callbacks are when training begins: empty."""

    def __init__(self) -> None:
        self.best: torch.Tensor | None = None
        self.history: list[Any] = []
        self.of_metric: dict[Any, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "history": self.history, "of_metric": self.of_metric}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.history, self.of_metric = state["best"], state["history"], state["of_metric"]


class Process:
    """One that built and protected, as each does."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(3, 1)
        self.model.register_buffer("seen", None)
        self.optimizer = Preconditioned(self.model.parameters())
        self.callback = Callback()
        self.notes: dict[str, Any] = {"mean": None, "all": {}}
        self.registry = Registry()
        self.registry.add("model", self.model)
        self.registry.add("optimizer", self.optimizer)
        self.registry.add("callback", self.callback)
        self.registry.add("notes", self.notes)

    def train(self) -> Process:
        self.optimizer.step()
        self.model.seen = torch.tensor([4, 5])
        self.callback.best = torch.tensor(0.25)
        self.callback.history += [torch.arange(2.0), {"at": (1, torch.ones(2, 2))}]
        self.callback.of_metric[3] = torch.tensor([True])
        self.notes["mean"] = torch.full((2,), 6.0)
        self.notes["all"]["x"] = [torch.zeros(1) - 1]
        self.optimizer.param_groups[0]["weights"][1] += 1
        return self


def hydrate(target: Process, source: Process) -> None:
    """What membership does, without the bytes' way through shared memory."""
    flat = source.registry.flatten()
    manifest = json.loads(manifest_json(flat))
    tensors = target.registry.prepare(manifest["tensors"], manifest["values"], set())
    assert list(tensors) == list(flat.tensors)
    for name, tensor in tensors.items():
        assert tensor.data_ptr() != flat.tensors[name].data_ptr() or tensor.numel() == 0
        tensor.copy_(flat.tensors[name])
    target.registry.load_values(manifest["values"], tensors)


def same(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, torch.Tensor):
        alike = isinstance(theirs, torch.Tensor) and mine.dtype == theirs.dtype and mine.stride() == theirs.stride()
        return alike and torch.equal(mine, theirs)
    if isinstance(mine, dict):
        return list(mine) == list(theirs) and all(same(mine[key], theirs[key]) for key in mine)
    if isinstance(mine, (list, tuple)):
        return type(mine) is type(theirs) and len(mine) == len(theirs) and all(map(same, mine, theirs))
    return bool(mine == theirs)


def assert_same(mine: Process, theirs: Process) -> None:
    assert same(mine.callback.state_dict(), theirs.callback.state_dict())
    assert same(mine.notes, theirs.notes)
    assert same(mine.optimizer.state_dict(), theirs.optimizer.state_dict())
    assert same(mine.model.state_dict(), theirs.model.state_dict())
    assert mine.registry.flatten().values == theirs.registry.flatten().values


def test_a_newcomer_gets_what_was_empty_when_it_was_registered() -> None:
    source, newcomer = Process().train().train(), Process()
    hydrate(newcomer, source)
    assert_same(newcomer, source)
    newcomer.optimizer.step()
    source.optimizer.step()
    assert_same(newcomer, source)


def test_what_is_there_is_filled_in_place_and_what_the_peer_lacks_is_dropped() -> None:
    source, target = Process().train(), Process().train()
    target.train()
    held = target.optimizer.state[target.model.weight]["GG"][1]
    target.optimizer.state[target.model.weight]["more"] = [torch.ones(1)]
    hydrate(target, source)
    assert_same(target, source)
    assert target.optimizer.state[target.model.weight]["GG"][1] is held


def test_a_peer_before_its_first_step_empties_everything_again() -> None:
    source, target = Process(), Process().train()
    source.model.seen = torch.tensor([4, 5])
    hydrate(target, source)
    assert_same(target, source)


def test_an_update_that_is_undone_leaves_the_lists_as_they_were() -> None:
    mine, same_before = Process().train(), Process().train()
    same_before.model.load_state_dict(mine.model.state_dict())
    hydrate(same_before, mine)
    snapshot = Snapshot(mine.registry)
    mine.train()
    mine.optimizer.state[mine.model.weight]["GG"][1] = torch.zeros(3, 3)
    snapshot.restore()
    assert_same(mine, same_before)


def test_an_update_that_is_undone_before_the_first_step_leaves_no_lists() -> None:
    mine = Process()
    mine.model.seen = torch.tensor([1, 2])
    snapshot = Snapshot(mine.registry)
    mine.optimizer.step()
    snapshot.restore()
    assert not any(mine.optimizer.state.values())


def test_copies_of_shards_contain_what_is_inside_lists() -> None:
    mine = Process().train()
    layout = ShardLayout(mine.registry, set())
    whole = mine.registry.flatten(set())
    assert "optimizer/state/0/Q.1" in whole.tensors
    again = layout.again(set())
    assert again is not None
    text = json.loads(layout.text(again.values, ""))
    assert [name for name, _, _ in text["tensors"]] == list(whole.tensors)
    assert text["values"] == whole.values
    mine.optimizer.state[mine.model.weight]["Q"][1] = torch.zeros(3, 3)
    assert layout.again(set()) is None


def test_a_checkpoint_makes_room_for_what_is_inside_lists() -> None:
    source, newcomer = Process().train(), Process()
    flat = source.registry.flatten()
    names = {name: ".".join(path) for name, path in state_dict.paths(source.registry, list(flat.tensors)).items()}
    assert names["optimizer/state/0/Q.1"] == "optimizer.state.weight.Q.1"
    entries = {
        names[name]: TensorStorageMetadata(TensorProperties(dtype=tensor.dtype), tensor.shape, [])
        for name, tensor in flat.tensors.items()
    }
    state_dict.make_room(newcomer.registry, Metadata(entries), flat.values)
    there = newcomer.registry.flatten().tensors
    assert {name: tensor.shape for name, tensor in there.items()} == {
        name: tensor.shape for name, tensor in flat.tensors.items()
    }


def test_two_tensors_with_one_path_are_refused() -> None:
    registry = Registry()
    registry.add("notes", {"a": [torch.zeros(1)], "a.0": torch.zeros(1)})
    with pytest.raises(KeepstepError, match=r"two tensors are called 'notes/a\.0'"):
        registry.check_carried()


@pytest.mark.parametrize(
    ("value", "line"),
    [({1, 2}, "write sorted(value)"), (object(), "turn it into one of these"), (torch.zeros(2).numpy(), "from_numpy")],
)
def test_what_cannot_be_carried_is_named_with_what_to_write(value: Any, line: str) -> None:
    registry = Registry()
    registry.add("notes", {"all": [0, {"x": value}]})
    with pytest.raises(KeepstepError) as raised:
        registry.check_carried()
    assert "'notes/all.1.x'" in str(raised.value) and line in str(raised.value)
