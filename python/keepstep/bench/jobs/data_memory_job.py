"""Ranks that hold a corpus at the same time, and the total growth of their proportional set sizes."""

from __future__ import annotations

import argparse
import json
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch


def pss_bytes() -> int:
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError("/proc/self/smaps_rollup has no Pss")


def mapped(prefix: str) -> Any:
    """keepstep: reads every token once."""
    from keepstep.data import TokenDataset

    data = TokenDataset(prefix, 2048)
    out = data.new_batch(64)
    for first in range(0, len(data) - 64, 64):
        data.fill_batch(out, range(first, first + 64))
    return data


def loaded(prefix: str) -> Any:
    """A plain loader: holds the tokens in private memory."""
    return torch.from_numpy(numpy.fromfile(prefix + ".bin", dtype=numpy.int16))


SIDES: dict[str, Callable[[str], Any]] = {"keepstep": mapped, "loaded": loaded}


def wait_for_word(go: int) -> None:
    if not os.read(go, 1):
        os._exit(1)  # the parent is gone


def rank(load: Callable[[str], Any], prefix: str, ready: int, go: int, result: int) -> None:
    """Reports each phase on `ready`, then waits for a byte on `go`."""
    os.write(ready, b".")
    wait_for_word(go)
    before = pss_bytes()  # while all ranks exist and none holds anything
    os.write(ready, b".")
    wait_for_word(go)
    held = load(prefix)
    os.write(ready, b".")
    wait_for_word(go)
    grown = pss_bytes() - before  # while all ranks hold it
    os.write(result, f"{grown}\n".encode())
    os.write(ready, b".")
    wait_for_word(go)
    del held


def main(chosen: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    import keepstep.data

    _ = keepstep.data.TokenDataset  # imported once, before the forks
    ready_out, ready_in = os.pipe()
    result_out, result_in = os.pipe()
    children = []
    go: list[int] = []  # one per rank, so a fast rank cannot take another's byte
    for _number in range(chosen.ranks):
        go_out, go_in = os.pipe()
        pid = os.fork()
        if pid == 0:
            for end in [*go, go_in]:  # so a rank whose parent is gone reads end of file, and exits
                os.close(end)
            try:
                rank(SIDES[chosen.side], chosen.prefix, ready_in, go_out, result_in)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        os.close(go_out)
        children.append(pid)
        go.append(go_in)
    os.close(ready_in)  # so this process does not wait forever if a rank ends early
    for _phase in range(4):
        arrived = 0
        while arrived < chosen.ranks:
            said = os.read(ready_out, chosen.ranks - arrived)
            if not said:
                raise SystemExit("a rank ended early")
            arrived += len(said)
        for end in go:
            os.write(end, b".")
    for pid in children:
        os.waitpid(pid, 0)
    os.close(result_in)
    with open(result_out) as results:
        grown = [int(line) for line in results]
    assert len(grown) == chosen.ranks
    print(json.dumps({"pss_bytes": sum(grown)}))


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--side", choices=SIDES, required=True)
    options.add_argument("--prefix", required=True)
    options.add_argument("--ranks", type=int, required=True)
    main(options.parse_args())
