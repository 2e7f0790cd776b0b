"""What a loader yields as bytes and back: bit for bit, without a copy, and never outside of the bytes."""

import random
import struct

import numpy
import pytest
import torch

from keepstep import KeepstepError
from keepstep.torch.data.batch_codec import Encoded, decode


def bytes_of(value):
    encoded = Encoded(value)
    whole = bytearray(encoded.bytes)
    for offset, address, size in encoded.pieces:
        whole[offset : offset + size] = (torch.frombuffer(_at(address, size), dtype=torch.uint8)).numpy().tobytes()
    return whole


def _at(address, size):
    import ctypes

    return (ctypes.c_char * size).from_address(address)


def same(one, other):
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, numpy.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and numpy.array_equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return one == other


def test_nested_batches_come_back_as_they_were():
    batch = {
        "tokens": torch.arange(24).view(2, 3, 4).transpose(0, 2),  # not contiguous
        "half": torch.randn(5).to(torch.bfloat16),
        "empty": torch.empty(0, 7),
        "scalar": torch.tensor(3.5),
        "mask": torch.tensor([True, False]),
        "array": numpy.arange(6, dtype="<u2").reshape(2, 3),
        "zero": numpy.array(7),
        7: [1, -1, 1 << 62, 1 << 200, -(1 << 99), 0.1, float("inf"), True, False, None],
        None: ("text", "ä€\ud800", b"\x00\xff", (), [], {}),
        "deep": [[[{"a": (torch.ones(1),)}]]],
    }
    assert same(decode(bytes_of(batch)), batch)


def test_tensors_view_the_bytes():
    whole = bytes_of([torch.zeros(4), numpy.zeros(4)])
    tensor, array = decode(whole)
    tensor.fill_(1)
    array.fill(2)
    again, again_array = decode(whole)
    assert again.tolist() == [1] * 4 and again_array.tolist() == [2] * 4


def deep(levels):
    value = None
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({"x": [1, {2}]}, "batch['x'][1] is a builtins.set"),
        ([torch.zeros(2).to_sparse()], "batch[0] is a torch.sparse_coo tensor"),
        ({"x": numpy.array(["a"])}, "batch['x'] is a numpy.ndarray"),
        ({(1, 2): 0}, "a key of type tuple"),
        ([torch.zeros(1, device="meta")], "batch[0] lies on meta"),
        (deep(100), "nested more than 64 deep"),
        ([1 << 20_000], "batch[0] is a number of 20001 bits"),
    ],
    ids=["set", "sparse", "text array", "key", "device", "depth", "digits"],
)
def test_what_cannot_be_carried_is_named(batch, words):
    with pytest.raises(KeepstepError) as raised:
        Encoded(batch)
    assert words in str(raised.value)


def test_damaged_bytes_are_an_error_and_nothing_else():
    rng = random.Random(1)
    batch = {"x": torch.arange(20), "y": ["text", (1.5, None, 1 << 80)], "z": numpy.arange(3)}
    good = bytes_of(batch)
    head = 24 + struct.unpack_from("<Q", good, 8)[0]
    refused = 0
    for _ in range(3_000):
        bad = bytearray(good[: rng.randrange(len(good))] if rng.random() < 0.1 else good)
        for _ in range(rng.randrange(1, 4)):
            if bad:
                bad[rng.randrange(min(head, len(bad)))] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
        try:
            decode(bad)
        except KeepstepError as error:
            assert "is damaged" in str(error)
            refused += 1
    assert refused > 700


def test_a_product_of_sizes_that_runs_over_is_refused():
    good = bytes_of(torch.zeros(2, 2))
    struct.pack_into("<2Q", good, 24 + 3, 1 << 63, 4)
    with pytest.raises(KeepstepError, match="does not lie in its"):
        decode(good)
