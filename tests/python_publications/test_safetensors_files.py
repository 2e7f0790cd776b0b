"""Safetensors: what is written can be read, and what is not valid is refused before its numbers are used."""

import json
import mmap

import pytest
import torch

from keepstep import KeepstepError
from keepstep.checkpoint.safetensors import DTYPES, lay_out, read_layout
from keepstep.torch.tensors import mapped


def file_of(tensors, metadata=None):
    layout = lay_out(
        {name: (str(each.dtype).removeprefix("torch."), each.shape) for name, each in tensors.items()}, metadata or {}
    )
    memory = mmap.mmap(-1, layout.bytes)
    memory[: len(layout.header)] = layout.header
    for name, each in tensors.items():
        begin = layout.tensors[name].begin
        raw = each.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        memory[begin : begin + len(raw)] = raw
    return memory


def some_tensors():
    torch.manual_seed(0)
    found = {name: torch.randint(0, 2, (3, 5)).to(getattr(torch, name)) for name in DTYPES if name != "float8_e8m0fnu"}
    return found | {"none": torch.empty(0, 4), "one": torch.tensor(7.0), "long name é": torch.randn(1000)}


def test_all_dtypes_are_read_as_they_were():
    tensors = some_tensors()
    memory = file_of(tensors, {"who": "a test"})
    layout, metadata = read_layout(memoryview(memory), "it")
    assert metadata == {"who": "a test"}
    found = mapped.tensors(memory, layout)
    assert set(found) == set(tensors)
    for name, tensor in tensors.items():
        assert found[name].shape == tensor.shape and found[name].dtype == tensor.dtype
        assert torch.equal(found[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)), name


def test_the_library_of_the_format_reads_it_too(tmp_path):
    library = pytest.importorskip("safetensors.torch")
    tensors = some_tensors()
    path = tmp_path / "a.safetensors"
    path.write_bytes(file_of(tensors, {"format": "pt"})[:])
    found = library.load_file(path)
    assert all(
        torch.equal(found[name].view(torch.uint8), tensors[name].view(torch.uint8)) for name in ("bfloat16", "bool")
    )
    assert set(found) == set(tensors)


GOOD = {"a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "F33"},
        {"dtype": None},
        {"shape": [2, 3]},
        {"shape": [-2, -2]},
        {"shape": [2.0, 2]},
        {"shape": "22"},
        {"shape": [1] * 65 + [4]},
        {"shape": [1 << 40, 1 << 40]},
        {"data_offsets": [0]},
        {"data_offsets": [8, 24]},
        {"data_offsets": [-16, 0]},
        {"data_offsets": [1 << 62, (1 << 62) + 16]},
        {"data_offsets": ["0", "16"]},
    ],
)
def test_what_does_not_fit_is_refused(change):
    text = json.dumps({"a": GOOD["a"] | change}).encode()
    with pytest.raises(KeepstepError, match="it is no valid safetensors file"):
        read_layout(memoryview(len(text).to_bytes(8, "little") + text + bytes(16)), "it")


@pytest.mark.parametrize(
    "file",
    [
        b"",
        b"\x00" * 8,
        (1 << 60).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"{",
        (2).to_bytes(8, "little") + b"[]",
        (2).to_bytes(8, "little") + b"\xff\xff",
        (len(b'{"__metadata__":{"a":1}}')).to_bytes(8, "little") + b'{"__metadata__":{"a":1}}',
        (8).to_bytes(8, "little") + b'{"a": 1}',
        (100_000).to_bytes(8, "little") + b"[" * 100_000,
    ],
)
def test_a_broken_header_is_refused(file):
    with pytest.raises(KeepstepError, match="it is no valid safetensors file"):
        read_layout(memoryview(file), "it")


def test_a_good_one_is_not():
    text = json.dumps(GOOD).encode()
    layout, _ = read_layout(memoryview(len(text).to_bytes(8, "little") + text + bytes(16)), "it")
    assert layout["a"].begin == 8 + len(text) and layout["a"].bytes == 16
