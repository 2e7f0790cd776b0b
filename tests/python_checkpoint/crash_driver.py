"""Saves that die at every system call that changes their tier; run with libkeepstep_crash_points.so preloaded.

python crash_driver.py FOLDER after|half|fail [EVERY]: prints, as one JSON object, how many points there were, and for
each of them which step was the newest afterwards. Ends with an error as soon as one is not as it must be.
"""

import ctypes
import errno
import itertools
import json
import os
import shutil
import signal
import sys
import traceback
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from states import LoadPlanner, Reader, Writer, assert_same, let_go, zeros

from keepstep import _checkpoint
from keepstep.checkpoint import destinations

MODES = {"after": 0, "half": 1, "fail": 2}
LIMIT = 5000
UNDISTURBED, REFUSED, COMPLETED = 0, 3, 5


def small(seed):
    return {"model": {"weight": torch.full((300, 40), float(seed)), "bias": torch.arange(7) * seed}, "step": seed}


def save(place, step, seed=None):
    dcp.save(small(step if seed is None else seed), storage_writer=Writer(place, step, keep=2, job="one job"))
    let_go()


def check(place, allowed):
    """Every checkpoint that is there is whole and right, and the newest is one of `allowed`."""
    for info in _checkpoint.Catalog(_checkpoint.open_store(place.as_uri())).checkpoints():
        if not info.complete:
            continue
        loaded = zeros(small(0))
        dcp.load(loaded, storage_reader=Reader(place, info.step), planner=LoadPlanner())
        assert_same(loaded, small(info.step))
        alone = zeros(small(0))
        dcp.load(alone, checkpoint_id=place / _checkpoint.folder_of(info.step))
        assert_same(alone, small(info.step))
    step = destinations.open_checkpoint(place).step
    assert step in allowed, (step, allowed)
    return step


def child(shim, place, mode, point):
    shim.crash_points_arm(str(place).encode(), point, MODES[mode], errno.ENOSPC)
    try:
        save(place, 3)
    except BaseException as error:  # DCP's own is none of Exception
        text = "".join(traceback.format_exception(error))
        if "No space left on device" in text:
            os._exit(REFUSED)
        print(text, file=sys.stderr)
        os._exit(1)
    os._exit(UNDISTURBED if shim.crash_points_counted() < point else COMPLETED)


def main():
    root, mode = Path(sys.argv[1]).resolve(), sys.argv[2]
    every = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    torch.set_num_threads(1)
    shim = ctypes.CDLL(None)
    shim.crash_points_arm.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_int]
    shim.crash_points_counted.restype = ctypes.c_long
    before = root / "before"
    save(before, 1)
    save(before, 2)
    check(before, [2])
    place = root / "place"
    newest = []
    for point in itertools.count(1, every):
        assert point < LIMIT
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(before, place)
        pid = os.fork()
        if pid == 0:
            child(shim, place, mode, point)
        _, status = os.waitpid(pid, 0)
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        if code == UNDISTURBED:
            assert check(place, [3]) == 3
            break
        if mode == "fail":
            # A save that could not make sure that its manifest is durable says so, and it is there all the same. After
            # that it removes what is too old: if that fails the save has succeeded.
            newest.append(check(place, {REFUSED: [2, 3], COMPLETED: [3]}[code]))
        else:
            assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, (point, status)
            newest.append(check(place, [2, 3]))
        save(place, 4)  # life goes on: with what the dead one left behind
        check(place, [4])
    print(json.dumps({"points": len(newest), "newest": newest}))


if __name__ == "__main__":
    main()
