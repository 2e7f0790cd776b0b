"""Which buffers the capsule has: by where they stand, also those that forward makes or replaces."""

from __future__ import annotations

import pytest
import torch

from keepstep import KeepstepError
from keepstep.torch.integrity.rechecks import Rechecks
from keepstep.torch.state.capsule import Capsule
from keepstep.torch.state.registry import Registry


class Pages:
    """What the engine does with capsules."""

    def __init__(self) -> None:
        self.saved: dict[int, bytes] = {}

    def save_capsule(self, version: int, data: bytes) -> None:
        self.saved[version] = data

    def load_capsule(self, version: int) -> bytes | None:
        return self.saved.get(version)


class Process:
    def __init__(self) -> None:
        self.model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
        self.model[0].register_buffer("seen", None)
        self.registry = Registry()
        self.registry.add("model", self.model)
        self.capsule = Capsule(self.registry)


def test_a_buffer_that_forward_makes_reaches_a_successor_and_a_redo_finds_none_again() -> None:
    pages, mine = Pages(), Process()
    mine.capsule.save(pages, 0)  # type: ignore[arg-type]
    mine.model[0].seen = torch.tensor([1.0, 2.0])
    assert id(mine.model[0].seen) in mine.capsule.ids
    mine.capsule.save(pages, 1)  # type: ignore[arg-type]
    successor = Process()
    assert successor.capsule.restore(pages, 1)  # type: ignore[arg-type]
    assert torch.equal(successor.model[0].seen, torch.tensor([1.0, 2.0]))
    assert mine.capsule.restore(pages, 0)  # type: ignore[arg-type]
    assert mine.model[0].seen is None


def test_a_buffer_that_forward_replaces_is_saved_as_it_is_now() -> None:
    pages, mine = Pages(), Process()
    mine.model[1].running_mean = mine.model[1].running_mean + 3
    mine.capsule.save(pages, 1)  # type: ignore[arg-type]
    successor = Process()
    assert successor.capsule.restore(pages, 1)  # type: ignore[arg-type]
    assert torch.equal(successor.model[1].running_mean, torch.tensor([3.0, 3.0]))


def test_a_buffer_that_the_update_replaces_is_released() -> None:
    mine = Process()
    before = mine.capsule.versions()
    for _ in range(3):  # old tensors are gone: another one may get the same id
        mine.model[1].running_var = mine.model[1].running_var * 2
    assert list(mine.capsule.release_changed(before)) == ["model/1.running_var"]
    assert "model/1.running_var" in mine.registry.flatten(mine.capsule.ids).tensors


def test_a_model_without_a_shape_is_refused_with_what_to_write() -> None:
    registry = Registry()
    registry.add("model", torch.nn.LazyLinear(3))
    with pytest.raises(KeepstepError, match=r"'model/weight' has no shape .* Write model\(example\)"):
        Rechecks(registry)


def test_a_buffer_that_was_none_may_come_and_one_that_is_registered_later_may_not() -> None:
    mine = Process()
    rechecks = Rechecks(mine.registry)
    mine.model[0].seen = torch.ones(2)
    rechecks.after(1, adopts=lambda here, known: here)
    mine.model[0].register_buffer("more", torch.ones(1))
    with pytest.raises(KeepstepError, match=r"'model/0\.more' float32\[1\] was added by step 2"):
        rechecks.after(2, adopts=lambda here, known: here)


def test_a_parameter_of_another_shape_or_gone_is_named() -> None:
    mine = Process()
    rechecks = Rechecks(mine.registry)
    mine.model[0].weight = torch.nn.Parameter(torch.zeros(3, 2))
    with pytest.raises(KeepstepError, match=r"'model/0\.weight' is float32\[3, 2\] by step 1; .*: float32\[2, 2\]"):
        rechecks.after(1, adopts=lambda here, known: here)
    mine = Process()
    rechecks = Rechecks(mine.registry)
    mine.model[0].bias = None
    with pytest.raises(KeepstepError, match=r"'model/0\.bias' float32\[2\] was removed by step 1"):
        rechecks.after(1, adopts=lambda here, known: here)


def test_after_the_first_commits_looks_are_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Process()
    rechecks = Rechecks(mine.registry)
    looks = []
    monkeypatch.setattr(mine.registry, "check_carried", lambda: looks.append(1))
    clock = iter(range(100, 10_000_000, 1))  # each look at it takes a second
    monkeypatch.setattr("keepstep.torch.integrity.rechecks.time.monotonic", lambda: next(clock))
    for step in range(1, 500):
        rechecks.after(step, adopts=lambda here, known: here)
    assert len(looks) == 3  # what took a second may be done again after a thousand
    for step in range(500, 1100):
        rechecks.after(step, adopts=lambda here, known: here)
    assert len(looks) == 4
