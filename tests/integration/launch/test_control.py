"""Commands that talk to a running job: `keepstep jobs`, `stacks` and `inject`, through its control door."""

import errno
import json
import os
import shutil
import signal
import socket
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness import finish
from running_jobs import command, refused


def door(name):
    """The path of a job's control door."""
    (lock,) = names().glob(f"job-{name}-*+lock-*")
    return str(lock).split("+lock-")[0]


def names():
    """Where processes of this user have their names, in these tests."""
    return Path(os.environ["XDG_RUNTIME_DIR"]) / "keepstep"


def test_jobs_are_listed_and_found_by_name_pid_and_journal_and_others_say_what_there_is(running):
    first, second = running("alpha", world=2), running("beta", world=1)
    first.wait_for_steps()
    second.wait_for_steps()
    listed = command("jobs").stdout
    assert first.name in listed and second.name in listed and "0,1" in listed, listed
    described = {line["job"]: line for line in map(json.loads, command("jobs", "--json").stdout.splitlines())}
    mine = described[first.name]
    assert mine["pid"] == first.process.pid and mine["world"] == 2 and mine["step"] > 0
    assert sorted(rank["rank"] for rank in mine["ranks"]) == [0, 1]
    assert mine["journal"] == str(first.folder / "journal")
    for word in (first.name, first.process.pid, first.folder / "journal"):
        assert str(first.process.pid) in command("inject", word, "agent-stop:seconds=0.01").stdout
    error = refused("stacks", "no-such-job")
    assert "no job 'no-such-job'" in error and first.name in error and second.name in error
    assert "Several jobs run" in refused("stacks")
    assert "no option" in refused("stacks", "--nativ")
    for job in (first, second):
        job.stop()
    assert first.name not in command("jobs").stdout
    assert not list(names().iterdir())


def test_stacks_name_who_does_something_else_whatever_holds_it(running):
    faults = ["loop:rank=0,step=3,phase=forward", "gil:rank=1,step=3,phase=forward",
              "deadlock:rank=2,step=3,phase=forward"]  # fmt: skip
    # Nobody is to be taken for hung and replaced before we looked.
    options = ["--hang-timeout", "off", *(part for fault in faults for part in ("--inject", fault))]
    job = running("stuck", world=5, options=options)
    job.wait_for_event("injected", 3)
    stopped = job.wait_for(lambda: command("inject", job.name, "stop:rank=3").stdout, "answer")
    assert "rank 3" in stopped and "SIGSTOP" in stopped
    # The journal has a fault before it happens: rank 2 may still be making the thread that holds the other lock.
    job.wait_for(lambda: "in deadlock (" in command("stacks", job.name).stdout, "the deadlock")
    shown = command("stacks", job.name)
    assert shown.returncode == 0, shown.stderr
    heads = [line for line in shown.stdout.splitlines() if line.startswith("rank ")]
    for rank, words in {
        0: "in endless_loop (keepstep/_faults.py",
        1: "in hold_gil (keepstep/_faults.py",
        2: "in deadlock (keepstep/_faults.py",
        3: "is stopped in ",
    }.items():
        head = next(line for line in heads if line.startswith(f"rank {rank} "))
        assert words in head and "step 3" in head, shown.stdout
    assert "called by train (small.py:" in shown.stdout
    assert "injected_deadlock_partner" in shown.stdout  # the other thread
    ranks = [json.loads(line) for line in command("stacks", job.name, "--json").stdout.splitlines()]
    assert [each["rank"] for each in ranks] == [0, 1, 2, 3, 4]
    assert ranks[3]["state"] == "T"
    # py-spy left it as it was.
    with open(f"/proc/{ranks[3]['pid']}/stat") as file:
        assert file.read().rsplit(")", 1)[1].split()[0] == "T"


@pytest.mark.long
def test_native_frames_are_shown_where_they_can_be_had(running):
    job = running("native", world=1)
    job.wait_for_steps()
    shown = command("stacks", job.name, "--native")
    assert shown.returncode == 0, shown.stderr
    assert "train (small.py:" in shown.stdout


def test_faults_are_injected_into_a_running_job_and_it_goes_on(running):
    job = running("live", world=2)
    job.wait_for_steps(2)
    assert "rank 1, pid" in command("inject", job.name, "kill:rank=1").stdout
    job.wait_for_event("first_commit")
    assert "rank 0 carries it out in phase between" in command("inject", job.name, "exception:rank=0").stdout
    job.wait_for_event("injected", 2)
    job.wait_for_event("first_commit", 2)
    for number, fault in enumerate(
        ["slow:rank=1,seconds=0.01,times=2", "flip:rank=any,what=parameter,seed=4", "kill:probability=1,times=2"], 3
    ):
        assert command("inject", job.name, fault).returncode == 0
        job.wait_for_event("injected", number)
    job.wait_for_event("injected", 6)  # the second of the last
    job.wait_for_steps(3)
    last = job.stop()
    injected = last.events("injected")
    assert [line["because"] for line in injected[:2]] == ["kill:rank=1", "exception:rank=0"], last.explain()
    assert injected[0]["rank"] == 1 and injected[0]["fault"] == "kill"
    assert "average/" in injected[3]["detail"] or "model/" in injected[3]["detail"]
    assert ", bit " in injected[3]["detail"]
    first_fault = next(line for line in last.journal if line["event"] == "fault_detected")
    assert injected[0]["mono"] < first_fault["mono"], "journalled before it is noticed"
    steps = [line["step"] for line in last.metrics]
    assert steps == list(range(1, len(steps) + 1)), last.explain()


def test_what_cannot_be_injected_is_refused_with_the_reason(running):
    job = running("refusing", world=2)
    job.wait_for_steps(2)
    for fault, words in {
        "murder": "'murder' is no kind of fault",
        "kill:rank=9": "there is no rank 9; ranks are 0 to 1",
        "exception:step=1": "step 1 is past",
        "exception:on=spare": "no spares",
        "slow:rank=0": "either seconds=S",
    }.items():
        assert words in refused("inject", job.name, fault), fault
    assert "[JOB] FAULT" in refused("inject")
    assert job.journal("injected") == []
    job.stop()


def test_a_job_that_does_not_allow_it_takes_no_fault(running):
    job = running("calm", world=1, allow_inject=False)
    job.wait_for_steps()
    assert "started without --allow-inject" in refused("inject", job.name, "kill:rank=0")
    assert "started without --allow-inject" in refused("inject", job.name, "agent-kill")
    last = job.stop()
    assert not last.events("injected") and not last.events("fault_detected"), last.explain()


def test_rubbish_at_the_door_and_clients_that_stall_do_not_disturb_the_job(running):
    job = running("patient", world=1)
    job.wait_for_steps()
    address = door(job.name)
    stalled = []
    for _ in range(40):
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        client.connect(address)
        stalled.append(client)
    for rubbish in (b"\0" * 100, b"GET /", b"[]", b'{"op": 1}', b'{"op": "stacks", "native": "x"}', b"x" * 100_000):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.connect(address)
            client.send(rubbish)
            client.recv(1 << 16)  # an error, or the end
    assert job.name in command("jobs").stdout
    assert any("control door: process" in line["because"] for line in job.journal("refused"))
    job.wait_for_steps()
    job.stop()


def test_another_user_finds_no_door_and_what_a_killed_launcher_left_is_cleared_away(running):
    job = running("lonely", world=1)
    job.wait_for_steps()
    path = Path(door(job.name))
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    if os.getuid() == 0:
        assert error_of_stranger(path) == errno.EACCES
    job.process.kill()
    job.process.wait()
    assert path.is_socket()
    assert job.name not in command("jobs").stdout
    assert not list(names().iterdir())


def error_of_stranger(path):
    """errno of another user's process that connects there."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect(str(path))
            os._exit(0)
        except OSError as error:
            os._exit(error.errno)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_door_whose_file_somebody_removed_comes_back(running):
    job = running("reborn", world=1)
    job.wait_for_steps()
    shutil.rmtree(names())
    job.wait_for_event("control_door", 2)
    assert job.name in command("jobs").stdout
    job.stop()


@pytest.mark.long
def test_a_launcher_that_is_stopped_or_gone_is_told_as_such(running):
    job = running("halted", world=1)
    job.wait_for_steps()
    command("inject", job.name, "agent-stop")

    def stopped():
        with open(f"/proc/{job.process.pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "T"

    job.wait_for(stopped, "stop")
    with ThreadPoolExecutor() as both:  # each waits for an answer as long as it does
        listed, complaint = both.submit(command, "jobs"), both.submit(refused, "stacks", job.name)
    assert f"the launcher (pid {job.process.pid}) did not answer" in listed.result().stdout, listed.result()
    assert "did not answer" in complaint.result()
    job.process.send_signal(signal.SIGCONT)
    job.wait_for_steps()
    assert "carried out now" in command("inject", job.name, "agent-kill").stdout
    assert finish(job.folder, job.process, job.command).exit_code == -signal.SIGKILL
    assert f"no job '{job.name}'" in refused("stacks", job.name)
