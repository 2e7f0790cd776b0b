"""Frozen parameters: what counts as one, that it is not sent, and how a base that differs is found."""

import pytest
import torch

from keepstep._errors import KeepstepError
from keepstep.torch.state.frozen import FROZEN
from keepstep.torch.state.registry import Registry
from keepstep.torch.state.update import Snapshot


def adapted(seed=0):
    """A frozen base, and an adapter that is trained."""
    torch.manual_seed(seed)
    model = torch.nn.ModuleDict({"base": torch.nn.Linear(8, 8), "adapter": torch.nn.Linear(8, 2)})
    model["base"].requires_grad_(False)
    return model, torch.optim.SGD(model["adapter"].parameters(), lr=0.1)


def registered(model, optimizer):
    registry = Registry()
    registry.add("model", model)
    registry.add("optimizer", optimizer)
    return registry


BASE = {"model/base.weight", "model/base.bias"}


def test_the_base_of_a_model_is_compared_and_not_sent():
    flat = registered(*adapted()).flatten_sent(set())
    assert set(flat.tensors) == {"model/adapter.weight", "model/adapter.bias"}
    assert set(flat.values[FROZEN]) == BASE
    registered(*adapted()).frozen.require_same(flat.values[FROZEN])


def test_a_base_that_differs_is_named():
    digests = registered(*adapted()).flatten_sent(set()).values[FROZEN]
    with pytest.raises(KeepstepError, match=r"frozen parameter 'model/base.weight' and 1 more has other values here"):
        registered(*adapted(seed=1)).frozen.require_same(digests)


def test_what_an_optimizer_has_is_sent_and_so_is_a_module_that_is_frozen_as_a_whole():
    model, _ = adapted()
    everything = torch.optim.SGD(model.parameters(), lr=0.1)
    assert registered(model, everything).frozen_names() == set()
    averaged = torch.nn.Linear(2, 2).requires_grad_(False)
    registry = registered(*adapted())
    registry.add("averaged", averaged)
    assert registry.frozen_names() == BASE


def in_place(parameter):
    with torch.no_grad():
        parameter.add_(1)


def other_memory(parameter):
    parameter.data = parameter.data + 1


@pytest.mark.parametrize("change", [in_place, other_memory])
def test_one_that_changes_is_sent_from_then_on(change):
    model, optimizer = adapted()
    registry = registered(model, optimizer)
    change(model["base"].weight)
    flat = registry.flatten_sent(set())
    assert "model/base.weight" in flat.tensors and set(flat.values[FROZEN]) == {"model/base.bias"}
    newcomer = registered(*adapted())
    newcomer.frozen.adopt(flat.tensors)
    assert newcomer.frozen_names() == {"model/base.bias"}
    wanted = newcomer.prepare(
        [[name, "float32", list(tensor.shape)] for name, tensor in flat.tensors.items()], flat.values, set()
    )
    assert set(wanted) == set(flat.tensors)


def test_a_change_through_data_is_found_in_the_first_steps_and_later_ends_the_job():
    model, optimizer = adapted()
    registry = registered(model, optimizer)
    model["base"].weight.data.add_(1)
    assert registry.frozen_names() == BASE
    registry.frozen.recheck(1, registry.updated(), adopts=lambda here, known: here)
    assert registry.frozen_names() == {"model/base.bias"}
    model["base"].bias.data.add_(1)
    with pytest.raises(KeepstepError, match=r"'model/base.bias' was changed through .data by step 9"):
        registry.frozen.recheck(9, registry.updated(), adopts=None)


def test_what_an_earlier_function_trained_is_sent_and_what_was_frozen_there_is_not():
    """A script that trains a model, then freezes its body: a process that comes later has the body as it was built."""
    model, _ = adapted()
    model["base"].requires_grad_(True)
    registered(model, torch.optim.SGD(model.parameters(), lr=0.1))
    model["base"].requires_grad_(False)
    adapter = torch.optim.SGD(model["adapter"].parameters(), lr=0.1)
    assert registered(model, adapter).frozen_names() == set()
    model, optimizer = adapted()
    assert registered(model, optimizer).frozen_names() == registered(model, optimizer).frozen_names() == BASE


def test_a_snapshot_can_do_without_the_base():
    model, optimizer = adapted()
    registry = registered(model, optimizer)
    before = [each.detach().clone() for each in model.parameters()]
    snapshot = Snapshot(registry, leave_out=registry.frozen_names())
    assert not BASE & snapshot._tensors.keys()
    with torch.no_grad():
        for each in model.parameters():
            each.add_(1)
    snapshot.restore()
    for (name, each), was in zip(model.named_parameters(), before, strict=True):
        assert torch.equal(each, was + 1 if f"model/{name}" in BASE else was), name
