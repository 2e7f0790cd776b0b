"""What ranks say of their shards comes from processes that run anybody's code: it is checked before it is used."""

import base64
import json
import random

import pytest

from keepstep._errors import KeepstepError
from keepstep.checkpoint import memory


def text(tensors, layout=None, values=None, capsule=b""):
    return json.dumps(
        {"tensors": tensors, "layout": layout or {}, "values": values or {},
         "capsule": base64.b64encode(capsule).decode()}
    )  # fmt: skip


def test_parts_of_one_tensor_are_put_together_and_the_ranks_that_hold_them_named():
    whole = [5, 4]
    found = memory.contents(
        {
            0: text([["w", "float32", [3, 4]], ["b", "int64", [2]]], {"w": [whole, [0, 0]]}, {"lr": 0.1}, b"12345"),
            1: text([["w", "float32", [2, 4]], ["b", "int64", [2]]], {"w": [whole, [3, 0]]}, {"lr": 0.1}, b"1234567"),
            2: text([["w", "float32", [3, 4]], ["b", "int64", [2]]], {"w": [whole, [0, 0]]}),
        }
    )
    assert found.tensors["w"].shape == (5, 4) and found.tensors["w"].parted
    assert found.tensors["w"].parts == {((0, 0), (3, 4)): [0, 2], ((3, 0), (2, 4)): [1]}
    assert found.tensors["b"].parts == {((0,), (2,)): [0, 1, 2]} and not found.tensors["b"].parted
    assert found.values == ["lr"] and found.capsules == {0: 5, 1: 7}


def test_different_tensors_under_one_name_are_told_apart_by_their_ranks():
    found = memory.contents({rank: text([["w", "float32", [rank // 2]]]) for rank in range(3)})
    assert sorted(found.tensors) == ["w (of ranks 0, 1)", "w (of ranks 2)"]


@pytest.mark.parametrize(
    "bad",
    [
        "", "[]", "{}", "[" * 100_000, text([["w", "float32"]]), text([["w", "no dtype", [1]]]),
        text([["w", "float32", [-1]]]), text([["w", "float32", [True]]]), text([["w", "float32", [1.0]]]),
        text([["w", "float32", [1 << 40, 1 << 40]]]), text([["w", "float32", [1] * 65]]), text([["", "float32", [1]]]),
        text([["\x1b[2J", "float32", [1]]]), text([[["w"], "float32", [1]]]), text([["w", "float32", "1"]]),
        text([["w", "float32", [3]]], {"w": [[4], [2]]}), text([["w", "float32", [3]]], {"w": [[4, 4], [0, 0]]}),
        text([["w", "float32", [3]]], {"w": [[4]]}), text([["w", "float32", [3]]], {"w": 7}),
        json.dumps({"tensors": {}, "layout": [], "values": [], "capsule": ""}),
        json.dumps({"tensors": [], "layout": {}, "values": {}, "capsule": 7}),
    ],
)  # fmt: skip
def test_what_no_rank_writes_is_refused_and_the_rank_named(bad):
    with pytest.raises(KeepstepError, match="the shard of rank 3 is not understood"):
        memory.contents({3: bad})


def test_random_changes_of_a_text_are_taken_or_refused_and_nothing_else():
    good = text([["w", "float32", [3, 4]], ["b", "int64", [2]]], {"w": [[5, 4], [0, 0]]}, {"lr": 0.1}, b"12345")
    chance = random.Random(17)
    refused = 0
    for _ in range(3000):
        changed = list(good)
        for _ in range(chance.randrange(1, 4)):
            changed[chance.randrange(len(changed))] = chance.choice('0123456789"[]{},:-aw.e\\')
        try:
            memory.contents({0: "".join(changed)})
        except KeepstepError:
            refused += 1
    assert 1000 < refused < 3000
