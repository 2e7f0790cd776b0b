"""`keepstep ckpt`, as users type it."""

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from states import save, state
from torch.distributed.checkpoint.filesystem import FileSystemWriter

KEEPSTEP = os.environ.get("KEEPSTEP_COMMAND") or shutil.which("keepstep", path=Path(sys.executable).parent)
STEP_2 = "step-000000000002"


def ckpt(*arguments, code=0):
    ran = subprocess.run([KEEPSTEP, "ckpt", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert ran.returncode == code, (ran.stdout, ran.stderr)
    return ran.stdout if code == 0 else ran.stdout + ran.stderr


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    place = tmp_path_factory.mktemp("run")
    for step in (1, 2):
        save(place, step, job="the job")
    return place


def safetensors(path):
    """All tensors of a file, by the format's page alone (https://github.com/huggingface/safetensors#format)."""
    data = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    assert header.pop("__metadata__") == {"format": "pt"}
    dtypes = {"F32": torch.float32, "BF16": torch.bfloat16, "I64": torch.int64, "BOOL": torch.bool,
              "F8_E4M3": torch.float8_e4m3fn, "C64": torch.complex64}  # fmt: skip
    at = 0
    found = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        assert begin == at  # no holes
        at = end
        elements = bytearray(data[8 + length + begin : 8 + length + end])
        dtype = dtypes[entry["dtype"]]
        flat = torch.frombuffer(elements, dtype=torch.uint8).view(dtype) if elements else torch.empty(0, dtype=dtype)
        found[name] = flat.view(entry["shape"])
    assert 8 + length + at == len(data) and length % 8 == 0
    return found


def test_ls_shows_the_checkpoints_of_all_places(saved, tmp_path):
    dcp.save(state(5), checkpoint_id=tmp_path / "plain")
    (saved / "step-000000000009").mkdir()
    (saved / "step-000000000009" / "__0_0.3-1.distcp").write_bytes(b"a save that did not end")
    text = ckpt("ls", saved, tmp_path / "plain")
    rows = [line.split() for line in text.splitlines()]
    assert rows[0][:4] == ["step", "complete", "size", "files"]
    assert [row[:2] for row in rows[1:5]] == [["9", "no"], ["2", "yes"], ["1", "yes"], ["-", "DCP's"]]
    assert f"{saved}: written by job 'the job'" in text and "which let go" in text
    told = json.loads(ckpt("ls", saved, "--json"))
    assert [row["complete"] for row in told["checkpoints"]] == [False, True, True]
    assert told["owners"][0]["job"] == "the job" and not told["owners"][0]["at_work"]
    assert ckpt("ls", tmp_path / "nothing") == f"no checkpoints in {tmp_path / 'nothing'}\n"
    shutil.rmtree(saved / "step-000000000009")


def test_ls_shows_the_other_places_where_one_cannot_be_read(saved):
    broken = "ftp://nowhere"
    both = ckpt("ls", saved, broken, code=1)
    assert str(saved) in both
    assert f"keepstep ckpt ls: {broken}: " in both
    told = subprocess.run([KEEPSTEP, "ckpt", "ls", saved, broken, "--json"], capture_output=True, text=True)
    assert told.returncode == 1
    assert [each["where"] for each in json.loads(told.stdout)["failed"]] == [broken]


def test_show_tells_what_is_in_one(saved):
    text = ckpt("show", f"{saved}@1", "--files")
    assert "step     1, saved" in text and "by job 'the job' on 1 ranks" in text
    assert "model.weight" in text and "[40, 30]" in text and "float8_e4m3fn" in text
    told = json.loads(ckpt("show", saved, "--json"))
    assert told["step"] == 2 and told["tensors"]["model.turned"]["shape"] == [50, 30]
    (part,) = told["tensors"]["model.turned"]["parts"]
    assert part["lengths"] == [50, 30] and part["file"] == told["files"][0]["name"]
    assert "step" in told["objects"]
    assert "step 7 is not there. Complete are 1, 2" in ckpt("show", f"{saved}@7", code=1)


def test_verify_finds_every_change_of_a_byte(saved, tmp_path):
    assert ckpt("verify", saved, "--all").count(": good (") == 2
    place = tmp_path / "copy"
    shutil.copytree(saved, place)
    (data,) = (place / STEP_2).glob("*.distcp")
    for victim, at in ((data, 100), (data, data.stat().st_size - 1), (place / STEP_2 / ".metadata", 50)):
        before = victim.read_bytes()
        victim.write_bytes(before[:at] + bytes([before[at] ^ 1]) + before[at + 1 :])
        told = json.loads(ckpt("verify", place, "--json", code=1))
        assert victim.name in told["checkpoints"][0]["problems"][0]
        victim.write_bytes(before)
    data.write_bytes(data.read_bytes() + b"more")
    assert "were written" in ckpt("verify", place, code=1)
    data.unlink()
    assert "is missing" in ckpt("verify", place, code=1)


def test_diff_tells_names_shapes_and_elements(saved, tmp_path):
    assert "no difference" in ckpt("diff", f"{saved}@1", f"{saved}@2")
    assert "other elements: model.weight" in ckpt("diff", f"{saved}@1", f"{saved}@2", "--data", code=1)
    other = state(2)
    other["model"]["weight"] = torch.zeros(3)
    other["model"]["new"] = torch.zeros(1)
    del other["step"]
    # Cut into more files, by DCP itself: the elements count, not how they are stored.
    dcp.save(other, storage_writer=FileSystemWriter(tmp_path / "plain", thread_count=3))
    # One line; where it takes long its progress follows, on stderr.
    told = json.loads(ckpt("diff", saved, tmp_path / "plain", "--data", "--json", code=1).splitlines()[0])
    assert told["only_in_first"] == ["step"] and told["only_in_second"] == ["model.new"]
    assert told["changed"] == ["'model.weight' is float32 [40, 30] in the first, float32 [3] in the second"]
    assert told["data"] == []


def test_export_writes_safetensors_that_hold_the_model(saved, tmp_path):
    ckpt("export", saved, "--prefix", "model.", "--out", tmp_path / "hf")
    expected = state(2)["model"]
    found = safetensors(tmp_path / "hf" / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape
        assert torch.equal(found[name].double() if tensor.dtype.itemsize == 1 else found[name],
                           tensor.double() if tensor.dtype.itemsize == 1 else tensor.resolve_conj())  # fmt: skip
    assert "--force" in ckpt("export", saved, "--out", tmp_path / "hf", code=1)
    ckpt("export", saved, "--out", tmp_path / "hf", "--shard-size", "4KB", "--force")
    files = sorted(path.name for path in (tmp_path / "hf").iterdir())
    index = json.loads((tmp_path / "hf" / "model.safetensors.index.json").read_text())
    assert "model.safetensors" not in files and set(index["weight_map"].values()) == set(files[:-1])
    assert files[0] == f"model-00001-of-{len(files) - 1:05}.safetensors"
    shard = index["weight_map"]["optimizer.state.0.exp_avg"]
    found = safetensors(tmp_path / "hf" / shard)["optimizer.state.0.exp_avg"]
    assert torch.equal(found, state(2)["optimizer"]["state"][0]["exp_avg"])


def test_what_dcp_saved_is_exported_as_well(tmp_path):
    dcp.save(state(3), checkpoint_id=tmp_path / "plain")
    ckpt("export", tmp_path / "plain", "--prefix", "model.", "--out", tmp_path / "hf")
    found = safetensors(tmp_path / "hf" / "model.safetensors")
    assert torch.equal(found["turned"], state(3)["model"]["turned"])


def test_rm_and_pin_keep_what_must_stay(saved, tmp_path):
    place = tmp_path / "copy"
    shutil.copytree(saved, place)
    assert "--last" in ckpt("rm", f"{place}@2", code=1)
    ckpt("pin", f"{place}@1", "--why", "the best one")
    assert "is pinned and stays" in ckpt("rm", f"{place}@1", code=1)
    assert "yes, pinned" in ckpt("ls", place)
    ckpt("pin", f"{place}@1", "--remove")
    ckpt("rm", f"{place}@1")
    assert not (place / "step-000000000001").exists()
    assert "has no step 1" in ckpt("rm", f"{place}@1", code=1)
    assert "which step?" in ckpt("rm", place, code=2)
    ckpt("rm", f"{place}@2", "--last")
    assert "no checkpoints" in ckpt("ls", place)


def test_every_command_has_help():
    text = ckpt("--help")
    for command in ("ls", "show", "verify", "diff", "export", "rm", "pin"):
        assert f"\n  {command} " in text
        assert f"usage: keepstep ckpt {command}" in ckpt(command, "--help")
    assert "there is no 'frob'" in ckpt("frob", code=2)
