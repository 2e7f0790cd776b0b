"""PyTorch's own backend tests: what passes with Gloo passes with keepstep."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from known import KNOWN, KNOWN_OF_GLOO_FILE

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def run(folder, backend, world, *options):
    out = folder / f"{backend}-{world}.json"
    done = subprocess.run(
        [
            ROOT / ".venv" / "bin" / "python", HERE, "--backend", backend,
            *(() if world == "file" else ("--world", str(world))), "--out", out, *options,
        ],
        env=dict(os.environ, KEEPSTEP_COMMAND=str(ROOT / "build" / "keepstep"), TEMP_DIR=str(folder / "scratch")),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    assert out.exists(), done.stdout[-4000:]
    return json.loads(out.read_text()), done.stdout


def test_a_part_of_the_suite_passes(tmp_path):
    results, output = run(tmp_path, "keepstep", 2, "--part", "1/7")
    assert sum(verdict == "passed" for verdict in results.values()) >= 10
    failed = {name for name, verdict in results.items() if verdict == "failed"} - KNOWN.keys()
    assert not failed, output[-6000:]


@pytest.mark.long
@pytest.mark.skipif("PYTORCH_TESTS" not in os.environ, reason="PYTORCH_TESTS: test/distributed of PyTorch's sources")
def test_what_passes_with_gloo_in_its_own_file_passes_with_keepstep(tmp_path):
    file = ("--gloo-file", os.environ["PYTORCH_TESTS"])
    gloo, _ = run(tmp_path, "gloo", "file", *file)
    ours, output = run(tmp_path, "keepstep", "file", *file)
    passed = {name for name in gloo if gloo[name] == "passed"}
    print(f"passed with keepstep {sum(ours[name] == 'passed' for name in passed)} of the {len(passed)} of Gloo")
    assert len(passed) >= 60
    worse = {name for name in passed if ours[name] != "passed"} - KNOWN_OF_GLOO_FILE.keys()
    assert not worse, output[-6000:]


@pytest.mark.long
@pytest.mark.parametrize("world", [2, 3, 4])
def test_what_passes_with_gloo_passes_with_keepstep(tmp_path, world):
    gloo, _ = run(tmp_path, "gloo", world)
    ours, output = run(tmp_path, "keepstep", world)

    def executed(results):
        return sum(not verdict.startswith("skipped") for verdict in results.values())

    print(f"world {world}: executed {executed(ours)} with keepstep, {executed(gloo)} with Gloo, of {len(gloo)}")
    assert executed(ours) >= executed(gloo)
    worse = {name for name in gloo if gloo[name] == "passed" and ours[name] != "passed"} - KNOWN.keys()
    assert not worse, output[-6000:]
