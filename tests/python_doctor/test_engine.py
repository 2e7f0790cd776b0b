"""What the engine says, in words."""

import pytest
from surroundings import levels, machine, only

from keepstep import KeepstepError
from keepstep.doctor import engine
from keepstep.doctor.finding import error, fine, warning


def test_a_machine_with_nothing_wrong_is_fine():
    every = [engine.open_files, engine.memory, engine.dev_shm, engine.kernel, engine.stacks, engine.folders]
    findings = [finding for check in every for finding in check(machine())]
    assert levels(findings) == ["fine"] * 7
    assert fine("open files", "the limit is 65536; a launcher with 8 ranks needs 260") in findings


def test_the_engine_s_sentence_falls_into_what_there_is_and_what_to_do():
    few = {"soft": 64, "hard": 64, "needed": 260, "errors": ["8 ranks need 260; raise it; now"], "warnings": []}
    assert engine.open_files(machine(open_files=few)) == [error("open files", "8 ranks need 260", "raise it; now")]
    tight = machine()["memory"] | {"warnings": ["shared memory takes much"]}
    assert engine.memory(machine(memory=tight)) == [warning("memory", "shared memory takes much")]


def test_each_thing_that_the_kernel_refuses_is_named():
    refused = [{"need": "process descriptors", "problem": "pidfd_open: Operation not permitted"}]
    finding = only(engine.kernel(machine(kernel=machine()["kernel"] + refused)))
    assert finding.level == "error"
    assert finding.found == "process descriptors does not work: pidfd_open: Operation not permitted"
    assert "seccomp" in finding.advice


def test_stacks_that_cannot_be_taken_are_a_warning():
    finding = only(engine.stacks(machine(stacks={"found": "", "problem": "no py-spy; install it with: pip"})))
    assert finding == warning(
        "stacks", "the stacks of ranks, also of hung ones, cannot be taken: no py-spy", "install it with: pip"
    )


def test_folders_that_cannot_be_used_are_named():
    runtime, temp = engine.folders(
        machine(
            runtime_folder={"found": "", "problem": "there is no folder. Set XDG_RUNTIME_DIR"},
            temp_folder={"found": "", "problem": "/tmp: Read-only file system"},
        )
    )
    assert runtime == warning(
        "runtime folder",
        "there is no folder. Set XDG_RUNTIME_DIR. Until then commands do not find running jobs, and nodes need "
        "--node-rank",
    )
    assert temp == error(
        "temporary files",
        "the folder for them cannot be used: /tmp: Read-only file system",
        "set TMPDIR to a folder that can be written",
    )


def test_a_long_tmpdir_has_no_room_for_sockets():
    long, short = "/" + "x" * 75, "/" + "x" * 74
    assert engine.folders(machine(temp_folder={"found": short, "problem": ""}))[1].level == "fine"
    finding = engine.folders(machine(temp_folder={"found": long, "problem": ""}))[1]
    assert finding.level == "warning"
    assert finding.found == f"{long} has 76 bytes: sockets of DataLoader workers have no room behind it"


def test_the_room_that_a_long_tmpdir_leaves_is_what_multiprocessing_needs():
    added = "/pymp-abcdefgh/listener-abcdefgh"
    assert engine.MAX_TEMP_BYTES + len(added) == 107  # of sun_path, without the last zero


@pytest.mark.parametrize("script", ["exit 3", "echo not JSON", "echo 7"])
def test_a_command_that_does_not_work_is_named(tmp_path, script):
    command = tmp_path / "keepstep"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    with pytest.raises(KeepstepError, match=f"the command {command} does not work"):
        engine.ask(str(command), 2, 1)
