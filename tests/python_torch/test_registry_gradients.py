"""After a commit all gradients are None: of modules, of optimizers, also of what an optimizer got meanwhile."""

import torch

from keepstep.torch.state.registry import Registry


def filled(*tensors):
    for tensor in tensors:
        tensor.grad = torch.ones_like(tensor)


def test_gradients_of_modules_and_of_optimizers_are_dropped():
    registry = Registry()
    model = torch.nn.Linear(2, 2)
    beside = torch.nn.Parameter(torch.zeros(3))
    registry.add("model", model)
    registry.add("optimizer", torch.optim.SGD([model.weight, beside], lr=0.1))
    filled(model.weight, model.bias, beside)
    registry.drop_gradients()
    assert [tensor.grad for tensor in (model.weight, model.bias, beside)] == [None] * 3


def test_parameters_that_came_or_changed_after_the_list_was_made_are_dropped_too():
    registry = Registry()
    first, second, third = (torch.nn.Parameter(torch.zeros(2)) for _ in range(3))
    optimizer = torch.optim.SGD([first], lr=0.1)
    registry.add("optimizer", optimizer)
    registry.list_parameters()
    optimizer.add_param_group({"params": [second]})
    filled(first, second)
    registry.drop_gradients()
    assert first.grad is None and second.grad is None
    optimizer.param_groups[0]["params"][0] = third  # in place
    filled(third)
    registry.drop_gradients()
    assert third.grad is None


def test_objects_protected_after_the_list_was_made_are_dropped_too():
    registry = Registry()
    registry.list_parameters()
    model = torch.nn.Linear(2, 2)
    registry.add("model", model)
    filled(*model.parameters())
    registry.drop_gradients()
    assert model.weight.grad is None and model.bias.grad is None
