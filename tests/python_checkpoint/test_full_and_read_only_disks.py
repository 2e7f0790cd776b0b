"""A disk without room, and one that cannot be written: the save is refused with a reason, what is there stays."""

import contextlib
import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch.distributed.checkpoint as dcp
from states import assert_same, load, save, state
from torch.distributed.checkpoint.api import CheckpointException

from keepstep.checkpoint.owners import let_go
from keepstep.torch.checkpoint import Writer

MS_RDONLY, MS_REMOUNT = 1, 32


@contextlib.contextmanager
def small_disk(folder, megabytes):
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if done.returncode != 0:
        pytest.skip(f"no right to mount a file system: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def refused(place, step):
    with pytest.raises(CheckpointException) as caught:
        dcp.save(state(step), storage_writer=Writer(place, step))
    let_go()
    return str(caught.value.failures[0][0])


def test_a_full_disk_refuses_the_save_and_keeps_what_is_there(tmp_path):
    with small_disk(tmp_path / "disk", 12) as disk:  # a checkpoint has 5 MB
        save(disk, 1)
        save(disk, 2)
        why = refused(disk, 3)
        assert "No space left on device" in why and "__0_0." in why
        assert_same(load(disk)[0], state(2))
        assert not list(Path(disk).glob(".keepstep-partial/*.*"))
        shutil.rmtree(disk / "step-000000000001")
        save(disk, 3)
        assert_same(load(disk)[0], state(3))


def test_a_read_only_disk_refuses_the_save_and_can_be_loaded_from(tmp_path):
    with small_disk(tmp_path / "disk", 12) as disk:
        save(disk, 1)
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mount(b"tmpfs", os.fsencode(disk), b"tmpfs", MS_REMOUNT | MS_RDONLY, None) == 0
        assert "Read-only file system" in refused(disk, 2)
        assert_same(load(disk)[0], state(1))
