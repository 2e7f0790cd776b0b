"""The jobs' interpreter, keepstep and torch in it."""

import os
import sys

import pytest
from surroundings import only, probe

from keepstep import KeepstepError
from keepstep.doctor import interpreter
from keepstep.doctor.finding import error, fine


@pytest.mark.parametrize(
    "version, level, says",
    [
        ("3.9.18", "error", "keepstep needs 3.10 or newer"),
        ("3.10.0", "fine", "3.10.0, /env/bin/python"),
        ("3.11.7", "fine", "3.11.7, /env/bin/python"),
        ("3.13.1", "warning", "keepstep is tested with 3.10 to 3.11 only"),
    ],
)
def test_which_python_is_right(version, level, says):
    finding = only(interpreter.python(probe(version=version)))
    assert finding.level == level and says in finding.found


def test_a_package_that_cannot_be_imported_is_an_error():
    why = "ModuleNotFoundError: No module named 'keepstep._engine'"
    finding = only(interpreter.package(probe(problems={"keepstep._engine": why}), "0.1.0", "/bin/keepstep"))
    assert finding == error(
        "keepstep",
        f"/env/bin/python cannot import keepstep._engine: {why}",
        "install keepstep for this interpreter, or set KEEPSTEP_PYTHON to an interpreter that fits",
    )


def test_command_and_package_must_be_of_one_version():
    assert interpreter.package(probe(), "0.1.0", "/bin/keepstep") == [
        fine("keepstep", "0.1.0, command /bin/keepstep")
    ]  # fmt: skip
    finding = only(interpreter.package(probe(), "0.2.0", "/bin/keepstep"))
    assert finding.level == "error"
    assert finding.found == (
        "the command /bin/keepstep is version 0.2.0, the package /env/keepstep/__init__.py is version 0.1.0"
    )


@pytest.mark.parametrize(
    "found, says",
    [
        (
            probe(problems={"torch": "ImportError: libcudart.so.13"}),
            "cannot import torch: ImportError: libcudart.so.13",
        ),
        (probe(torch={"distributed": False}), "2.15.0+cu132 is built without torch.distributed"),
        (probe(problems={"keepstep.torch": "KeepstepError: torch 2.9 is too old"}), "torch 2.9 is too old"),
    ],
)
def test_a_torch_that_no_job_can_use_is_an_error(found, says):
    finding = only(interpreter.torch(found))
    assert finding.level == "error" and finding.found.endswith(says)


def test_a_good_torch_is_told_with_what_it_is_built_with():
    assert interpreter.torch(probe()) == [fine("torch", "2.15.0+cu132, built with CUDA 13.2, NCCL 2.30.7")]
    cpu = probe(torch={"version": "2.15.0+cpu", "cuda": None, "nccl": None})
    assert interpreter.torch(cpu) == [fine("torch", "2.15.0+cpu, built for CPUs only")]


def test_this_interpreter_is_looked_into():
    found = interpreter.Probe(sys.executable).answer()
    assert found["problems"] == {}
    assert found["version"] == sys.version.split()[0]
    assert found["torch"]["distributed"] is True


@pytest.mark.parametrize(
    "script, says",
    [
        ("echo 'about to import torch'; kill -ILL $$", "ended by SIGILL when it was about to import torch"),
        ("echo broken >&2; exit 3", "ended with exit code 3: broken"),
        ("echo nothing of JSON", "ended with exit code 0"),
    ],
)
def test_an_interpreter_that_dies_is_named_with_what_it_was_doing(tmp_path, script, says):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    with pytest.raises(KeepstepError) as failed:
        interpreter.Probe(str(python)).answer()
    assert str(failed.value) == f"{python} {says}"


def test_an_interpreter_that_cannot_be_started_is_named(tmp_path):
    with pytest.raises(KeepstepError, match="cannot be started: "):
        interpreter.Probe(str(tmp_path / "none"))


def test_a_probe_that_is_not_waited_for_is_ended(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 1000\n")
    python.chmod(0o755)
    probing = interpreter.Probe(str(python))
    probing.end()
    with pytest.raises(ProcessLookupError):
        os.kill(probing._process.pid, 0)
