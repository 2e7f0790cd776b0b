"""`keepstep certify`: what it says about scripts whose mistakes are known."""

import json
import signal
import subprocess

import pytest

from harness import JOBS, KEEPSTEP, environment
from linear import PROGRAM, arguments

LIMIT_S = 900


def certify(folder, *words):
    """(exit code, certificate); all is kept below `folder`."""
    (folder / "files").mkdir(exist_ok=True)
    command = [KEEPSTEP, "certify", "--json", "--out", folder / "certificate", *words]
    words = [str(word) for word in command]
    with subprocess.Popen(
        words, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder
    ) as process:
        try:
            printed, said = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # it ends its jobs, which are in sessions of their own
            raise
    assert printed, said
    return process.returncode, json.loads(printed)


def careless(folder, mode, only):
    return certify(
        folder, "--nproc-per-node", 2, "--only", only, JOBS / "careless.py", mode, "--out", folder / "files"
    )  # fmt: skip


def verdicts(found):
    return {fault["name"]: fault["verdict"] for fault in found["faults"]}


@pytest.mark.long
def test_a_sound_script_survives_and_all_is_kept(tmp_path):
    code, found = certify(
        tmp_path, "--nproc-per-node", 2, "--only", "kill-backward,exception,loop,slow,two-at-once",
        JOBS / "small.py", "--model", "rich", "--out", "{job}", "--until", 500,
    )  # fmt: skip
    assert code == 0, json.dumps(found["faults"], indent=1)
    assert verdicts(found) == dict.fromkeys(["kill-backward", "exception", "loop", "slow"], "survives"), found
    assert found["deterministic"] and found["job"]["steps"] == 10 and found["job"]["world_size"] == 2
    assert [each["name"] for each in found["not_tried"]] == ["two-at-once", "faults of a GPU"]
    kept = tmp_path / "certificate"
    assert json.loads((kept / "certificate.json").read_text()) == found
    page = (kept / "index.html").read_text()
    for fault in found["faults"]:
        assert fault["name"] in page
        assert (kept / "jobs" / fault["name"] / "run" / "journal.jsonl").is_file()
        assert [*(kept / "jobs" / fault["name"] / "own").iterdir()], "nothing was written for this job alone"
    (killed,) = [fault for fault in found["faults"] if fault["name"] == "kill-backward"]
    assert killed["downtime_ms"] > 0 and killed["replaced_by"] == ["zygote"] and killed["phases_ms"]["hydrate"] > 0


@pytest.mark.long
def test_what_every_entry_does_again_is_named_and_what_run_once_does_is_not(tmp_path):
    code, found = careless(tmp_path, "log", "kill-forward")
    assert code == 0, found
    (fault,) = found["faults"]
    assert fault["verdict"] == "survives"
    again = {(each["what"], each["of"]) for each in fault["repeated"]}
    assert ("appends to", str(tmp_path / "files" / "entered.txt")) in again, fault
    assert ("prints", "training begins") in again, fault
    assert not any("guarded.txt" in of for _, of in again), fault


@pytest.mark.long
def test_what_is_not_deterministic_is_found_where_it_first_shows(tmp_path):
    _, found = careless(tmp_path, "random", "kill-forward")
    assert found["deterministic"] is False
    assert found["differs_at"].startswith("step 1, rank 0")
    assert "bits cannot be compared" in found["faults"][0]["because"]


def test_state_that_is_not_protected_is_named_and_nothing_else_is_tried(tmp_path):
    code, found = careless(tmp_path, "unprotected", "kill-forward")
    assert code == 1
    assert found["blocked"].startswith("check: the training loop uses optimizer 'other'")
    assert found["faults"] == []


@pytest.mark.long
def test_a_script_that_does_not_survive_is_said_so_and_why(tmp_path):
    code, found = careless(tmp_path, "stubborn", "kill-forward,slow")
    assert code == 1
    assert verdicts(found) == {"kill-forward": "DOES NOT", "slow": "survives"}, found
    assert found["faults"][0]["because"].startswith("exit code 1"), found


def test_a_program_without_python_is_compared_by_its_losses(tmp_path):
    code, found = certify(
        tmp_path, "--no-python", "--nproc-per-node", 2, "--only", "kill-update,exception,gil", PROGRAM,
        *arguments(tmp_path / "files", 12),
    )  # fmt: skip
    assert code == 0, found
    assert verdicts(found) == {"kill-update": "survives", "exception": "survives"}
    assert found["job"]["steps"] == 12


@pytest.mark.long
def test_of_a_torchrun_script_it_says_that_all_ranks_restart_and_what_that_costs(tmp_path):
    code, found = certify(tmp_path, "--nproc-per-node", 2, JOBS / "plain_loop.py", 1000)
    assert code == 0, found
    assert not found["job"]["recoverable"]
    assert verdicts(found) == {"kill": "restarts", "stop": "restarts"}, found
    assert found["plain_restart_s"] >= 0
    assert found["deterministic"] is None, "nothing was compared"
    assert found["not_tried"][0]["name"] == "all other faults"


@pytest.mark.long
def test_all_of_it_on_two_nodes(tmp_path):
    code, found = certify(
        tmp_path, "--nnodes", 2, "--spare-nodes", 1, "--nproc-per-node", 2, "--spares", 1,
        JOBS / "small.py", "--model", "rich", "--out", tmp_path / "files", "--until", 500,
    )  # fmt: skip
    assert code == 0, [fault for fault in found["faults"] if not fault["survived"]]
    assert verdicts(found)["node"] == "survives", found
    assert len(found["faults"]) >= 24


def test_wrong_options_are_all_listed_and_a_foreign_folder_is_left_alone(tmp_path):
    command = [str(KEEPSTEP), "certify", "--journal", "x", "--wrong", "train.py"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "--journal cannot be given" in done.stderr and "no option --wrong" in done.stderr
    (tmp_path / "precious.txt").write_text("mine")
    command = [str(KEEPSTEP), "certify", "--out", str(tmp_path), "train.py"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "is not empty" in done.stderr
    assert (tmp_path / "precious.txt").read_text() == "mine"
