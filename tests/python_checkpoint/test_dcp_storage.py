"""Saving and loading through torch.distributed.checkpoint: what comes back, and what is refused."""

import io
import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from states import assert_same, load, save, state, zeros
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorProperties, TensorStorageMetadata

from keepstep import _checkpoint
from keepstep._errors import KeepstepError
from keepstep.checkpoint.owners import let_go
from keepstep.torch.checkpoint import LoadPlanner, Reader, Writer


def folder(place, step):
    return Path(place) / _checkpoint.folder_of(step)


def data_file(place, step):
    (found,) = folder(place, step).glob("*.distcp")
    return found


def steps(place):
    return [info.step for info in _checkpoint.Catalog(_checkpoint.open_store(Path(place).as_uri())).checkpoints()]


def refusal(call):
    """The error behind DCP's collection of all ranks' errors."""
    with pytest.raises((CheckpointException, KeepstepError)) as caught:
        call()
    error = caught.value
    return str(error.failures[0][0]) if isinstance(error, CheckpointException) else str(error)


def test_what_was_saved_comes_back(tmp_path):
    save(tmp_path, 3)
    loaded, reader = load(tmp_path)
    assert_same(loaded, state(3))
    assert reader.step == 3


def test_dcp_alone_loads_what_keepstep_saved(tmp_path):
    save(tmp_path, 4)
    loaded = zeros(state(0))
    dcp.load(loaded, checkpoint_id=folder(tmp_path, 4))
    assert_same(loaded, state(4))


def test_torch_without_keepstep_loads_what_keepstep_saved(tmp_path):
    save(tmp_path, 4)
    script = (
        "import sys, torch, torch.distributed.checkpoint as dcp\n"
        "sys.modules['keepstep'] = None\n"
        "loaded = {'model': {'weight': torch.zeros(40, 30)}}\n"
        "dcp.load(loaded, checkpoint_id=sys.argv[1])\n"
        "print(loaded['model']['weight'].double().sum().item())\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(folder(tmp_path, 4))],
        capture_output=True, text=True, env=environment, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert float(ran.stdout) == state(4)["model"]["weight"].double().sum().item()


def test_keepstep_loads_what_dcp_saved(tmp_path):
    dcp.save(state(5), checkpoint_id=tmp_path / "plain")
    loaded, reader = load(tmp_path / "plain")
    assert_same(loaded, state(5))
    assert reader.step is None


def test_one_folder_of_a_namespace_is_a_checkpoint_by_itself(tmp_path):
    save(tmp_path / "run", 6)
    folder(tmp_path / "run", 6).rename(tmp_path / "alone")
    assert_same(load(tmp_path / "alone")[0], state(6))


def test_async_save_works_unchanged(tmp_path):
    saved = state(7)
    saved["model"]["complex"] = saved["model"]["complex"].resolve_conj()  # DCP's own staging forgets that it is due
    future = dcp.async_save(saved, storage_writer=Writer(tmp_path, 7))
    getattr(future, "upload_completion", future).result()
    let_go()
    assert_same(load(tmp_path)[0], state(7))


def test_a_writer_goes_on_with_the_next_step_or_the_one_that_is_said(tmp_path):
    writer = Writer(tmp_path)
    for seed in (1, 2):
        dcp.save(state(seed), storage_writer=writer)
    dcp.save(state(3), storage_writer=writer, checkpoint_id=30)
    assert steps(tmp_path) == [1, 2, 30]
    assert "'step-120'" in refusal(lambda: dcp.save(state(1), storage_writer=writer, checkpoint_id="/somewhere"))
    let_go()
    for step, seed in ((1, 1), (2, 2), (30, 3)):
        assert_same(load(tmp_path, step)[0], state(seed))


def test_so_many_are_kept_and_the_newest_is_loaded(tmp_path):
    for step in (10, 20, 30, 40):
        save(tmp_path, step, keep=2)
    assert steps(tmp_path) == [30, 40]
    assert load(tmp_path)[1].step == 40


def test_a_save_that_did_not_end_does_not_exist(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 2)
    (folder(tmp_path, 2) / "manifest.json").unlink()
    loaded, reader = load(tmp_path)
    assert reader.step == 1
    assert_same(loaded, state(1))
    assert "step 2 is not complete" in refusal(lambda: load(tmp_path, 2))
    assert "Complete are 1" in refusal(lambda: load(tmp_path, 9))
    save(tmp_path, 2, seed=8)  # the same step anew
    assert_same(load(tmp_path, 2)[0], state(8))
    assert len(list(folder(tmp_path, 2).glob("*.distcp"))) == 1


def test_a_step_that_is_there_is_replaced_only_if_asked_to(tmp_path):
    save(tmp_path, 1)
    assert "replace=True" in refusal(lambda: save(tmp_path, 1, seed=2))
    assert_same(load(tmp_path)[0], state(1))
    save(tmp_path, 1, seed=2, replace=True)
    assert_same(load(tmp_path)[0], state(2))
    assert len(list(folder(tmp_path, 1).glob("*.distcp"))) == 1


def test_what_dcp_saved_into_a_namespace_is_left_alone(tmp_path):
    save(tmp_path, 1)
    dcp.save(state(2), checkpoint_id=folder(tmp_path, 2))
    assert "not keepstep's" in refusal(lambda: save(tmp_path, 2))
    assert_same(load(tmp_path, 2)[0], state(2))
    assert load(tmp_path)[1].step == 1


class Stranger:
    def __reduce__(self):
        return (os.mkdir, (os.environ["STRANGER"],))


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """A folder that appears if a pickle is run."""
    monkeypatch.setenv("STRANGER", str(tmp_path / "ran"))
    yield Stranger()
    assert not (tmp_path / "ran").exists()


def test_objects_that_cannot_be_stored_safely_are_refused_by_name(tmp_path, stranger):
    why = refusal(lambda: dcp.save({"model": {"odd": stranger}}, storage_writer=Writer(tmp_path, 1)))
    assert "'model.odd'" in why and "mkdir" in why
    for odd, word in (
        (torch.eye(3).to_sparse(), "sparse"),
        (torch.ones(2, device="meta"), "meta"),
    ):
        why = refusal(lambda odd=odd: dcp.save({"model": {"odd": odd}}, storage_writer=Writer(tmp_path, 1)))
        assert "'model.odd'" in why and re.search(word, why), why
    assert not list(tmp_path.glob("step-*/manifest.json"))
    let_go()


def test_a_metadata_that_would_run_something_is_refused_by_name(tmp_path, stranger):
    dcp.save(state(1), checkpoint_id=tmp_path / "plain")
    (tmp_path / "plain" / ".metadata").write_bytes(pickle.dumps({"a": stranger}))
    why = refusal(lambda: load(tmp_path / "plain"))
    assert "'posix.mkdir'" in why and "nothing of it was run" in why


def shared_name_metadata(names, length):
    """As DCP writes it, but all tensors share one name, which the pickle holds once."""
    name = "n" * length
    properties = TensorProperties(dtype=torch.float32)
    metadata = Metadata({}, None, {})
    for i in range(names):
        metadata.storage_data[MetadataIndex(name, torch.Size([i]))] = _StorageInfo("__0_0.distcp", 0, 4)
    metadata.state_dict_metadata["a"] = TensorStorageMetadata(properties, torch.Size([1]), [])
    return pickle.dumps(metadata)


def test_a_metadata_whose_texts_are_worth_more_than_the_file_is_refused(tmp_path):
    hostile = shared_name_metadata(2000, 100_000)
    assert len(hostile) < 400_000  # 200 MB of names
    dcp.save(state(1), checkpoint_id=tmp_path / "plain")
    (tmp_path / "plain" / ".metadata").write_bytes(hostile)
    assert "its texts are shared too often" in refusal(lambda: load(tmp_path / "plain"))


def test_a_metadata_with_many_parts_of_long_names_is_read():
    whole = shared_name_metadata(2000, 300)
    _checkpoint.read_metadata(whole)


def test_files_are_for_their_owner_alone(tmp_path):
    before = os.umask(0)
    try:
        save(tmp_path / "place", 1)
    finally:
        os.umask(before)
    for path in (tmp_path / "place").rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_an_object_that_would_run_something_is_not_loaded(tmp_path, stranger):
    dcp.save({"odd": stranger}, checkpoint_id=tmp_path / "plain")
    loaded = {"odd": None}
    why = refusal(lambda: dcp.load(loaded, storage_reader=Reader(tmp_path / "plain")))
    assert "'odd' is not loaded" in why and "mkdir" in why


def test_a_checkpoint_of_another_model_is_refused_with_all_that_differs(tmp_path):
    save(tmp_path, 1)
    other = zeros(state(0))
    other["model"]["weight"] = torch.zeros(30, 40)
    other["model"]["half"] = "a text"
    for i in range(30):
        other["model"][f"new.{i:02}"] = torch.zeros(1)
    del other["step"]
    why = refusal(lambda: dcp.load(other, storage_reader=Reader(tmp_path), planner=LoadPlanner()))
    assert "30 keys are missing in it: 'model.new.00'" in why and "and 10 more" in why
    assert "2 shapes are different" in why and "'model.weight' is [40, 30] in it and [30, 40] here" in why
    assert "'model.half' is a tensor in it and no tensor here" in why
    assert "1 key is only in it: 'step'" in why


def test_a_corrupt_chunk_is_named_or_read_elsewhere(tmp_path):
    save(tmp_path / "a", 1)
    save(tmp_path / "b", 1)
    damaged = data_file(tmp_path / "a", 1)
    with damaged.open("r+b") as file:
        file.seek(-2_000_000, io.SEEK_END)
        byte = file.read(1)
        file.seek(-1, io.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    why = refusal(lambda: load(tmp_path / "a"))
    assert f"chunk 0 of 'step-000000000001/{damaged.name}'" in why and "is corrupt" in why
    # The other place holds the same bytes under the same name only if the same job wrote both.
    data_file(tmp_path / "b", 1).rename(folder(tmp_path / "b", 1) / damaged.name)
    assert_same(load(tmp_path / "a", others=[tmp_path / "b"])[0], state(1))


def test_missing_and_truncated_files_are_named(tmp_path):
    save(tmp_path, 1)
    file = data_file(tmp_path, 1)
    os.truncate(file, 1000)
    why = refusal(lambda: load(tmp_path))
    assert "is truncated" in why and file.name in why
    file.unlink()
    assert file.name in refusal(lambda: load(tmp_path))


def test_a_manifest_of_a_newer_version_is_refused_with_what_to_do(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 2)
    (folder(tmp_path, 2) / "manifest.json").write_text('{"format":"keepstep checkpoint","version":2}')
    assert "a newer keepstep wrote it" in refusal(lambda: load(tmp_path))
    assert_same(load(tmp_path, 1)[0], state(1))


def test_places_that_cannot_be_are_refused(tmp_path):
    for place, word in (("", "needed"), ("ftp://x/y", "ftp"), ("s3://", "bucket")):
        assert word in refusal(lambda place=place: Writer(place))
    assert "no complete checkpoint" in refusal(lambda: load(tmp_path / "nowhere"))
    for options in ({"step": -1}, {"step": 10**12}, {"keep": 0}):
        assert next(iter(options)) in refusal(lambda options=options: Writer(tmp_path, **options))
    assert "use_collectives" in refusal(
        lambda: dcp.save(state(1), storage_writer=Writer(tmp_path, 1), use_collectives=False)
    )


HOLDER = """
import sys
from keepstep import _checkpoint
owner = _checkpoint.Owner(_checkpoint.open_store(sys.argv[1]), "the first job")
print("has it", flush=True)
sys.stdin.read()
"""


def test_a_second_job_is_refused_while_the_first_lives(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path.as_uri()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "has it\n"
        why = refusal(lambda: save(tmp_path, 1, job="another"))
        assert f"belongs to job 'the first job' (pid {holder.pid} on " in why and "still at work" in why
    finally:
        holder.kill()
        holder.wait()
    save(tmp_path, 1, job="another")
    assert_same(load(tmp_path)[0], state(1))


def test_a_place_that_was_emptied_is_begun_anew(tmp_path):
    dcp.save(state(1), storage_writer=Writer(tmp_path, 1))
    shutil.rmtree(tmp_path)
    dcp.save(state(1), storage_writer=Writer(tmp_path, 1))
    let_go()
    assert_same(load(tmp_path)[0], state(1))


def test_a_job_that_was_taken_over_completes_nothing(tmp_path):
    class TakenOver(Writer):
        def finish(self, metadata, results):
            # The namespace changes hands while the data is being written.
            subprocess.run(
                [sys.executable, "-c", HOLDER, tmp_path.as_uri()], input="", text=True, check=True,
                env={**os.environ, "KEEPSTEP_JOB": ""}, stdout=subprocess.DEVNULL,
            )  # fmt: skip
            super().finish(metadata, results)

    writer = TakenOver(tmp_path, 1, job="the first job")
    assert "was taken over by job 'the first job'" in refusal(lambda: dcp.save(state(1), storage_writer=writer))
    assert not list(tmp_path.glob("step-*/manifest.json"))
    let_go()
