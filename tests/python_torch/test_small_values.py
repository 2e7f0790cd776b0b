"""Small values of all ranks in one checkpoint."""

import torch

from keepstep.torch.checkpoint import small_values, state_dict
from keepstep.torch.state.registry import Registry


def registry(names, momentum):
    """A model with parameters of these `names`, and an optimizer whose state holds a number for each."""
    model = torch.nn.Module()
    for name in names:
        model.register_parameter(name, torch.nn.Parameter(torch.zeros(2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for parameter in model.parameters():
        optimizer.state[parameter]["calls"] = momentum
    found = Registry()
    found.add("model", model)
    found.add("optimizer", optimizer)
    return found


def named(of):
    return small_values.named(of, state_dict.parameter_names(of), of.flatten().values)


def taken(text, of, rank, world):
    return small_values.taken(text, of, state_dict.parameter_names(of), rank, world)


def test_each_stage_of_a_pipeline_gets_the_numbers_of_its_own_parameters():
    stages = [registry(["first", "second"], 3), registry(["third"], 4)]
    text = small_values.merged([named(stage) for stage in stages])
    assert taken(text, stages[0], 0, 2) == stages[0].flatten().values
    assert taken(text, stages[1], 1, 2) == stages[1].flatten().values


def test_another_number_of_ranks_finds_them_by_the_names_of_the_parameters():
    text = small_values.merged([named(registry(["first", "second"], 3)), named(registry(["third"], 4))])
    whole = taken(text, registry(["third", "first", "second"], 0), 0, 1)
    assert [whole[f"optimizer/state/{number}/calls"] for number in range(3)] == [4, 3, 3]


def test_what_differs_by_rank_is_each_ranks_own_or_the_lowest_ranks_that_has_it():
    text = small_values.merged([{"a/x": 1, "a/y": 5}, {"a/x": 2, "a/y": 5}])
    empty = Registry()
    assert taken(text, empty, 1, 2) == {"a/x": 2, "a/y": 5}
    assert taken(text, empty, 1, 3) == {"a/x": 1, "a/y": 5}
