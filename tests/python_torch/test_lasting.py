"""What a training function makes in each entry is told from what lasts."""

from __future__ import annotations

import functools
import sys
import types
from typing import Any

import pytest
import torch

from keepstep import KeepstepError
from keepstep.torch.integrity import lasting

_CACHE: dict[str, Any] = {}


class Trainer:
    def __init__(self, model: torch.nn.Module) -> None:
        self.inner = {"models": [model]}


@functools.cache
def cached() -> torch.nn.Module:
    return torch.nn.Linear(1, 1)


def lasts(item: object, kept: list[object] | None = None, entry: list[object] | None = None) -> bool:
    try:
        lasting.require("model", item, [kept or []], entry or [])
    except KeepstepError as error:
        assert "model = run.keep(" in str(error)
        return False
    return True


def test_what_was_kept_lasts_with_all_that_it_holds() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    optimizer = torch.optim.Adam(model.parameters())
    kept: list[object] = [(Trainer(model), optimizer)]
    assert lasts(model, kept) and lasts(optimizer, kept)
    assert lasts(model[0], kept) and lasts(model[0].weight, kept)


def test_what_only_this_entry_holds_does_not_last() -> None:
    kept = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(kept.parameters(), lr=0.1)
    scheduled = torch.optim.SGD(kept.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(scheduled, 3)
    trainer = Trainer(torch.nn.Linear(2, 2))
    assert schedule.optimizer is scheduled  # and each leads to the other
    for item in (optimizer, scheduled, trainer.inner["models"][0]):
        assert not lasts(item, [kept])


def test_what_modules_and_caches_hold_lasts() -> None:
    assert lasts(cached())
    _CACHE["model"] = Trainer(torch.nn.Linear(2, 2))
    try:
        assert lasts(_CACHE["model"].inner["models"][0])
    finally:
        _CACHE.clear()


def test_arguments_defaults_and_what_the_function_closes_over_last() -> None:
    outside = torch.nn.Linear(2, 2)
    default = torch.nn.Linear(2, 2)
    argument = torch.nn.Linear(2, 2)

    def helper() -> torch.nn.Module:
        return outside

    def train(run: Any, model: torch.nn.Module = default) -> torch.nn.Module:
        return helper()

    entry: list[object] = [train, (argument,), {}]
    assert lasts(outside, entry=entry) and lasts(default, entry=entry) and lasts(argument, entry=entry)
    assert not lasts(outside, entry=[argument])


def test_a_module_made_by_hand_counts_if_it_is_a_module_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    made = types.ModuleType("made_by_hand")
    made.model = torch.nn.Linear(2, 2)  # type: ignore[attr-defined]
    assert not lasts(made.model)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "made_by_hand", made)
    assert lasts(made.model)  # type: ignore[attr-defined]
