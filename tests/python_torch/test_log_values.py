"""What step.log publishes is what json.dumps would write, with text in place of what JSON lacks."""

import enum
import json
import math

import pytest
import torch

import keepstep
from keepstep.torch.runtime.log_values import object_text


class Kind(enum.IntEnum):
    SECOND = 2


@pytest.mark.parametrize(
    "value",
    [None, True, False, 0, -(10**30), 0.1, 1e-300, -0.0, "", 'a"b\\\n\t\x00', "schön 😀", [], {}, (1, [2.5, None]),
     {"a": {"b": [1, "x"]}}],
)  # fmt: skip
def test_plain_values_are_as_in_json(value):
    assert json.loads(object_text({"x": value, "y": value})) == json.loads(json.dumps({"x": value, "y": value}))
    assert object_text({"x": value}) == json.dumps({"x": value})


def test_numbers_that_json_lacks_and_tensors_and_keys_become_what_it_has():
    values = {
        "nan": math.nan,
        "inf": [math.inf, -math.inf],
        "one": torch.tensor(1.5),
        "some": torch.tensor([[1, 2], [3, 4]]),
        "keys": {1: "a", None: "b"},
        "kind": Kind.SECOND,
    }
    assert json.loads(object_text(values)) == {
        "nan": "nan",
        "inf": ["inf", "-inf"],
        "one": 1.5,
        "some": [[1, 2], [3, 4]],
        "keys": {"1": "a", "None": "b"},
        "kind": 2,
    }


def test_half_characters_are_replaced_whole_ones_kept():
    assert json.loads(object_text({"x\ud83d": "a\udcffb", "y": "\ud83d\ude00"})) == {"x\ufffd": "a\ufffdb", "y": "😀"}


def test_what_json_cannot_carry_is_named():
    with pytest.raises(keepstep.KeepstepError, match="'x' is a set; a number"):
        object_text({"x": [{1}]})
