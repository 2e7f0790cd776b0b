"""Which optimizers may step what is protected."""

import pytest
import torch
from torch.optim import SGD, Optimizer

from keepstep.torch.integrity.stepping import unprotected
from keepstep.torch.state.registry import Registry


class Around(Optimizer):
    """As wrappers are that share what the inner one has, or have a state of their own."""

    def __init__(self, inner, shares=True):
        super().__init__(inner.param_groups, {})
        self.inner = inner
        if shares:
            self.state, self.param_groups = inner.state, inner.param_groups


class Plain:
    """A wrapper that is no optimizer."""

    def __init__(self, inner):
        self.parts = [inner]

    def state_dict(self):
        return self.parts[0].state_dict()

    def load_state_dict(self, state):
        self.parts[0].load_state_dict(state)


def protected(**objects):
    registry = Registry()
    for name, item in objects.items():
        registry.add(name, item)
    return registry


MODEL = torch.nn.Linear(2, 2)


def stepped():
    optimizer = SGD(MODEL.parameters(), lr=0.1, momentum=0.9)
    MODEL(torch.ones(2)).sum().backward()
    optimizer.step()
    return optimizer


def test_one_that_is_not_protected_is_named_by_what_it_steps():
    schedule = torch.optim.lr_scheduler.StepLR(stepped(), 2)
    registry = protected(model=MODEL, loose=torch.zeros(2), schedule=schedule, other=stepped())
    assert unprotected(registry, registry.objects["other"]) is None
    assert unprotected(registry, stepped()) == "model/weight"
    assert unprotected(registry, schedule.optimizer) == "model/weight"
    assert unprotected(registry, SGD([registry.objects["loose"]], lr=1)) == "loose"
    assert unprotected(registry, SGD([torch.zeros(2)], lr=1)) is None


@pytest.mark.parametrize("protects", ["the inner", "the outer"])
@pytest.mark.parametrize("kind", [Around, Plain])
def test_wrappers_and_what_they_wrap_know_each_other(kind, protects):
    inner = stepped()
    outer = kind(inner)
    registry = protected(model=MODEL, optimizer=inner if protects == "the inner" else outer)
    assert unprotected(registry, inner) is None
    assert kind is Plain or unprotected(registry, outer) is None


def test_a_wrapper_with_a_state_of_its_own_is_named_and_so_is_what_has_another_than_its_wrapper():
    inner = stepped()
    outer = Around(inner, shares=False)
    registry = protected(model=MODEL, optimizer=inner)
    assert unprotected(registry, outer) is None  # it has none
    outer.state[MODEL.weight]["slow"] = torch.zeros(2, 2)
    assert unprotected(registry, outer) == "model/weight"
    assert unprotected(protected(model=MODEL, optimizer=outer), inner) == "model/weight"


def test_the_inner_one_of_zero_is_carried_with_it():
    inner = stepped()
    outer = type("ZeroRedundancyOptimizer", (SGD,), {"_overlap_with_ddp": False})(MODEL.parameters(), lr=0.1)
    outer.optim = inner
    assert unprotected(protected(model=MODEL, optimizer=outer), inner) is None
