"""`keepstep bench NAME`: how a benchmark ends that cannot be made, or is stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest


def bench(*arguments: str, command: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "keepstep.bench", *arguments],
        env=os.environ | {"KEEPSTEP_COMMAND": str(command)},
        cwd=command.parent,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # who runs the tests may ignore it
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    "name",
    [
        "step",
        "digest",
        "reproducible",
        "rendezvous",
        "recovery",
        "rehearsal",
        "elastic",
        "data",
        "checkpoint",
        "parity",
        "hydrate",
    ],
)
def test_without_the_command_keepstep_a_benchmark_says_so(tmp_path: Path, name: str) -> None:
    done = bench(name, command=tmp_path / "missing")
    assert done.returncode == 1
    assert done.stderr.lstrip().startswith(
        f"keepstep bench {name}: no command keepstep (looked for {tmp_path}/missing)"
    )


def test_a_disk_error_of_data_build_is_told_in_a_line(tmp_path: Path) -> None:
    command = tmp_path / "keepstep"
    command.write_text("no program\n")
    command.chmod(0o755)
    done = bench("data-build", "--megabytes", "1", "--tokenizers", "bytes", "--against", "", command=command)
    assert done.returncode == 1
    assert done.stderr == f"keepstep bench data-build: [Errno 8] Exec format error: '{command}'\n"


def test_ctrl_c_ends_a_benchmark_and_its_job(tmp_path: Path) -> None:
    command = tmp_path / "keepstep"
    command.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nkill -INT $PPID\nexec sleep 600\n")
    command.chmod(0o755)
    done = bench("digest", command=command)
    assert (done.returncode, done.stderr) == (130, "keepstep bench digest: stopped; all its processes are ended\n")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("step", "--worlds"),
        ("digest", "--worlds"),
        ("digest", "--micro-batches"),
        ("reproducible", "--micro-batches"),
        ("data", "--batches"),
        ("transport", "--ranks-per-node"),
        ("allreduce", "--ranks"),
        ("checkpoint", "--worlds"),
        ("checkpoint", "--nodes"),
    ],
)
def test_what_is_no_list_of_numbers_is_refused(tmp_path: Path, name: str, option: str) -> None:
    for bad in ("2,x", "0", "2,"):
        done = bench(name, option, bad, command=tmp_path / "missing")
        assert done.returncode == 2
        assert f"argument {option}: '{bad}': numbers from 1, separated by commas, are needed" in done.stderr


def test_what_is_no_code_is_refused(tmp_path: Path) -> None:
    for bad, why in [
        ("6", "codes like 6+2, separated by commas, are needed"),
        ("6+2,", "codes like 6+2, separated by commas, are needed"),
        ("0+2", "codes like 6+2, separated by commas, are needed"),
        ("250+6", "a code has at most 255 blocks"),
    ]:
        done = bench("parity", "--codes", bad, command=tmp_path / "missing")
        assert done.returncode == 2
        assert f"argument --codes: '{bad}': {why}" in done.stderr


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("elastic", ["--resizes", "--repetitions"]),
        ("recovery", ["--repetitions"]),
        ("rendezvous", ["--repetitions", "--reforms", "--processes"]),
        ("hydrate", ["--megabytes", "--seconds"]),
        ("memory", ["--world", "--versions", "--loads"]),
        ("step", ["--steps"]),
        ("demo", ["--until"]),
    ],
)
def test_nothing_is_measured_less_than_once(tmp_path: Path, name: str, options: list[str]) -> None:
    for option in options:
        done = bench(name, option, "0", command=tmp_path / "missing")
        assert done.returncode == 2
        assert f"argument {option}: 0 is too few; at least 1" in done.stderr


def test_a_size_of_state_has_a_step_to_it(tmp_path: Path) -> None:
    for bad in ("500", "0:5", "500:0", "500:x", "500:nan"):
        done = bench("checkpoint", "--sizes", bad, command=tmp_path / "missing")
        assert done.returncode == 2
        assert f"argument --sizes: '{bad}': megabytes per rank and seconds of a step are needed" in done.stderr
    done = bench("checkpoint", "--against", "dcp,tape", command=tmp_path / "missing")
    assert done.returncode == 2
    assert "argument --against: 'tape' is none of dcp, torch_save" in done.stderr


def test_a_name_that_is_none_is_refused(tmp_path: Path) -> None:
    done = bench("speed", command=tmp_path / "missing")
    assert done.returncode == 2
    assert done.stderr.startswith("keepstep bench: there is no 'speed'\nusage: keepstep bench NAME")


def test_a_reader_that_stops_early_causes_no_traceback():
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "keepstep.bench", "--help"], stdout=writing, stderr=subprocess.PIPE, timeout=120
        )
    finally:
        os.close(writing)
    assert ended.returncode == 1
    assert ended.stderr == b""
