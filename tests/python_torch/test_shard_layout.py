"""What a copy of sharded state consists of is worked out again when, and only when, it changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from keepstep.torch.sharded.layout import ShardLayout
from keepstep.torch.state.registry import Registry


class Protected:
    def __init__(self) -> None:
        self.model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.other: dict[str, Any] = {"seen": torch.zeros(2), "epoch": 0}
        self.registry = Registry()
        self.registry.add("model", self.model)
        self.registry.add("optimizer", self.optimizer)
        self.registry.add("other", self.other)
        self.step()

    def step(self) -> None:
        self.model(torch.ones(5, 3)).sum().backward()
        self.optimizer.step()

    @property
    def state(self) -> dict[str, Any]:
        """Of the first parameter."""
        return self.optimizer.state[next(self.model.parameters())]


def placed(layout: ShardLayout) -> list[tuple[int, int, int]]:
    layout.stand_ins()
    return layout.regions


def test_what_only_changes_its_values_keeps_its_layout() -> None:
    mine = Protected()
    layout = ShardLayout(mine.registry, set())
    places = placed(layout)
    mine.step()
    mine.optimizer.param_groups[0]["lr"] = 0.5
    mine.other["epoch"] = 7
    flat = layout.again(set())
    assert flat is not None
    whole = mine.registry.flatten(set())
    text = json.loads(layout.text(flat.values, "AA=="))
    assert text["values"] == whole.values
    assert (text["values"]["optimizer/groups/0/lr"], text["values"]["other/epoch"]) == (0.5, 7)
    assert [name for name, _, _ in text["tensors"]] == list(whole.tensors)
    assert text["capsule"] == "AA=="
    assert placed(layout) == places
    assert [(t.data_ptr(), t.nbytes, -1) for t in whole.tensors.values()] == places


def other_memory(mine: Protected) -> None:
    next(mine.model.parameters()).data = torch.zeros(4, 3)


def other_parameter(mine: Protected) -> None:
    mine.model[0].weight = torch.nn.Parameter(torch.zeros(4, 3))


def other_layer(mine: Protected) -> None:
    mine.model[2] = torch.nn.Linear(4, 2)


def one_more_layer(mine: Protected) -> None:
    mine.model.append(torch.nn.Linear(2, 2))


def one_more_buffer(mine: Protected) -> None:
    mine.model[1].register_buffer("more", torch.zeros(1))


def other_moment(mine: Protected) -> None:
    mine.state["exp_avg"] = mine.state["exp_avg"] * 2


def one_more_moment(mine: Protected) -> None:
    mine.state["max_exp_avg_sq"] = torch.zeros(4, 3)


def loaded_optimizer(mine: Protected) -> None:
    mine.optimizer.load_state_dict(mine.optimizer.state_dict())


def other_order(mine: Protected) -> None:
    mine.optimizer.param_groups[0]["params"].reverse()


def other_small_tensor(mine: Protected) -> None:
    mine.other["seen"] = torch.ones(2)


def one_more_object(mine: Protected) -> None:
    mine.registry.add("more", torch.zeros(1))


@pytest.mark.parametrize(
    "change",
    [
        other_memory,
        other_parameter,
        other_layer,
        one_more_layer,
        one_more_buffer,
        other_moment,
        one_more_moment,
        loaded_optimizer,
        other_order,
        other_small_tensor,
        one_more_object,
    ],
)
def test_other_tensors_are_noticed(change: Callable[[Protected], None]) -> None:
    mine = Protected()
    layout = ShardLayout(mine.registry, set())
    assert layout.again(set()) is not None
    change(mine)
    assert layout.again(set()) is None


def test_a_buffer_that_leaves_the_capsule_is_noticed() -> None:
    mine = Protected()
    capsule = {id(buffer) for buffer in mine.model.buffers()}
    layout = ShardLayout(mine.registry, capsule)
    assert layout.again(capsule) is not None
    capsule.pop()
    assert layout.again(capsule) is None


def test_an_optimizer_that_counts_in_numbers_beside_its_tensors() -> None:
    mine = Protected()
    mine.state["step"] = 3
    layout = ShardLayout(mine.registry, set())
    mine.state["step"] = 4
    flat = layout.again(set())
    assert flat is not None
    assert flat.values == mine.registry.flatten(set()).values
    assert flat.values["optimizer/state/0/step"] == 4
    mine.state["exp_avg"] = mine.state["exp_avg"] * 2
    assert layout.again(set()) is None


def test_a_number_that_becomes_a_tensor_is_noticed() -> None:
    mine = Protected()
    mine.state["step"] = 3
    layout = ShardLayout(mine.registry, set())
    mine.state["step"] = torch.tensor(4.0)
    assert layout.again(set()) is None


def test_tensors_that_are_not_dense_are_copied_through_stand_ins_made_anew() -> None:
    mine = Protected()
    wide = torch.arange(6.0).reshape(2, 3)
    mine.other["turned"] = wide.t()
    layout = ShardLayout(mine.registry, set())
    assert layout.again(set()) is not None
    wide[0, 1] = 100.0
    (stand_in,) = layout.stand_ins()
    assert stand_in.is_contiguous()
    assert stand_in.tolist() == wide.t().tolist()
    assert stand_in.data_ptr() in [address for address, _, _ in layout.regions]
