"""Backend "keepstep" against Gloo: what is built on c10d, and random collectives."""

import json
import os
import random
import signal
import subprocess

import pytest

from harness import JOBS, ROOT

PYTHON = ROOT / ".venv" / "bin" / "python"


def run_ranks(folder, script, arguments_of, world, limit_s=300):
    arguments = [json.dumps([*map(str, arguments_of(rank))]) for rank in range(world)]
    parent = subprocess.Popen(
        [PYTHON, JOBS / "forked_ranks.py", folder, JOBS / script, *arguments],
        env=dict(os.environ, KEEPSTEP_COMMAND=str(ROOT / "build" / "keepstep"), OMP_NUM_THREADS="1"),
        stdout=subprocess.PIPE, start_new_session=True, text=True,
    )  # fmt: skip
    try:
        codes = parent.communicate(timeout=limit_s)[0]
    finally:
        if parent.poll() is None:
            os.killpg(parent.pid, signal.SIGKILL)
            parent.wait()
    outputs = [(folder / f"rank-{rank}.txt").read_text() for rank in range(world)]
    assert parent.returncode == 0 and json.loads(codes) == [0] * world, "\n".join(outputs)
    return outputs


def same(ours, theirs, path=""):
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours:
            same(ours[key], theirs[key], f"{path}/{key}")
    elif isinstance(ours, list):
        assert len(ours) == len(theirs), path
        for number, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            same(mine, other, f"{path}[{number}]")
    elif isinstance(ours, float):
        # Gloo adds in another order, and bfloat16 (what the hook compresses to) in bfloat16.
        assert ours == pytest.approx(theirs, rel=5e-3 if "hook" in path else 1e-4), path
    else:
        assert ours == theirs, path


def test_ddp_fsdp2_hsdp_tensor_parallel_and_dcp_run_over_it(tmp_path):
    results = {}
    for backend in ("keepstep", "gloo"):
        run_ranks(
            tmp_path, "parallelisms.py",
            lambda rank, b=backend: [b, tmp_path / f"store-{b}", rank, 4, tmp_path / "out"], world=4,
        )  # fmt: skip
        results[backend] = [json.loads((tmp_path / f"out-{backend}-{rank}.json").read_text()) for rank in range(4)]
    assert all(result["dcp"] and all(result["dcp"]) for result in results["keepstep"])
    same(results["keepstep"], results["gloo"])


def test_lists_of_tensors_and_averages_of_integers(tmp_path):
    found = {}
    for backend in ("keepstep", "gloo"):
        outputs = run_ranks(
            tmp_path, "tensor_lists.py", lambda rank, b=backend: [b, tmp_path / f"store-{b}", rank, 3], world=3
        )
        found[backend] = [json.loads(output.splitlines()[-1]) for output in outputs]
    averages = [result.pop("averages of integers") for result in found["keepstep"]]
    # (3 + 4 + 5) / 3 and 7; (-1 + 0 + 0) / 3 is rounded towards zero.
    types = ("int64", "int32", "int16", "int8", "uint8")
    assert averages == [[{f"torch.{name}": [4, 7] for name in types}, [0, -3]]] * 3
    same(found["keepstep"], found["gloo"])


@pytest.mark.parametrize("world", [4, pytest.param(2, marks=pytest.mark.long)])
def test_random_collectives_give_what_gloo_gives(tmp_path, world):
    seed = random.SystemRandom().randrange(1 << 30)
    outputs = run_ranks(
        tmp_path, "random_collectives.py", lambda rank: [tmp_path / "store", rank, world, seed, 150], world
    )
    assert all("equal" in output for output in outputs)


@pytest.mark.long
@pytest.mark.parametrize("world", [2, 3, 4])
def test_many_random_collectives_give_what_gloo_gives(tmp_path, world):
    for part in range(3):
        seed = random.SystemRandom().randrange(1 << 30)
        outputs = run_ranks(
            tmp_path, "random_collectives.py",
            lambda rank, p=part, s=seed: [tmp_path / f"s{p}", rank, world, s, 1500], world,
        )  # fmt: skip
        assert all("equal" in output for output in outputs)
