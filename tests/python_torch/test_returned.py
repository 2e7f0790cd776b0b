"""What a recoverable function returned, as a process gets it that passes over that function."""

import math

import pytest
import torch

from keepstep import KeepstepError, State
from keepstep.torch.runtime import returned


def there_and_back(value, states=None):
    states = states or {}
    return returned.decode(returned.encode(value, states), lambda name: states[name])


@pytest.mark.parametrize(
    "value",
    [None, True, 3, -0.5, math.inf, "a", [], [1, [2]], (), ({"a": (1, "b")},), {"list": [1], "state": None, "": {}}],
)
def test_plain_data_comes_back_as_it_was(value):
    back = there_and_back(value)
    assert back == value
    assert type(back) is type(value)


def test_nan_stays_nan():
    assert math.isnan(there_and_back(math.nan))


def test_states_come_back_as_those_of_the_process_that_reads():
    mine, theirs = State(x=torch.zeros(1)), State(x=torch.ones(1))
    text = returned.encode({"best": (theirs, 0.5), "name": "tuple"}, {"": State(), "second": theirs})
    assert returned.decode(text, {"second": mine}.__getitem__) == {"best": (mine, 0.5), "name": "tuple"}


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (torch.zeros(1), "a torch.Tensor"),
        ([1, {"loss": torch.zeros(())}], "a torch.Tensor"),
        (torch.nn.Linear(1, 1), "a torch.nn.modules.linear.Linear"),
        ({1: 2}, "a dict"),
        ({1, 2}, "a set"),
        (torch.float32, "a torch.dtype"),
        (State(), "a State that run.setup did not build"),
        ("a" * returned.MAX_BYTES, f"{returned.MAX_BYTES + 2} bytes of data"),
    ],
)
def test_other_things_are_named(value, what):
    with pytest.raises(KeepstepError, match=what):
        returned.encode(value, {})
