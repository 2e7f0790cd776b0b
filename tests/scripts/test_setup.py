"""scripts/setup.sh: an environment is never taken away before another one stands in its place; what runs meanwhile."""

import os
import signal
import socket
import subprocess
import threading
import time

import pytest
from checkout import Checkout


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A checkout that was set up."""
    checkout = Checkout(tmp_path_factory.mktemp("set up") / "a b")
    checkout.run("scripts/setup.sh")
    return checkout


@pytest.fixture
def checkout(made):
    """The same one; its environment is what its requirements ask for, before and after."""
    yield made
    made.run("scripts/setup.sh")
    assert not list(made.folder.glob(".venv?*")), "something is left beside the environment"


def test_with_the_environment_activated_a_second_setup_changes_nothing(checkout):
    before = os.stat(checkout.folder / ".venv").st_ino
    said = checkout.run("source .venv/bin/activate && scripts/setup.sh && python -c 'import sys; print(sys.prefix)'")
    assert said.strip() == str(checkout.folder / ".venv")
    assert os.stat(checkout.folder / ".venv").st_ino == before


@pytest.mark.long
def test_an_activated_environment_can_be_made_again(checkout):
    before = checkout.key()
    checkout.require("# More than before.\n")
    checkout.run("source .venv/bin/activate && scripts/setup.sh")
    assert checkout.key() != before
    assert checkout.prefix() == checkout.folder / ".venv"


def test_an_environment_of_the_users_own_is_none_to_make_one_of(checkout, tmp_path):
    before = checkout.key()
    checkout.run(f"python3 -m venv --without-pip '{tmp_path}/own' && source '{tmp_path}/own/bin/activate'"
                 " && scripts/setup.sh")  # fmt: skip
    assert checkout.key() == before


def test_scripts_of_the_environment_know_where_they_are(checkout):
    at = checkout.folder / ".venv"
    assert str(at) in checkout.run(".venv/bin/pip --version")
    told = checkout.run('source .venv/bin/activate && echo "$VIRTUAL_ENV" && command -v python pip && echo "$PS1"')
    assert told.splitlines() == [str(at), str(at / "bin/python"), str(at / "bin/pip"), "(.venv) "]
    assert ".venv.new" not in "".join(
        path.read_text(errors="replace") for path in [*at.glob("bin/*"), at / "pyvenv.cfg"] if not path.is_symlink()
    )


@pytest.mark.long
def test_the_command_that_was_built_stays(checkout):
    (checkout.folder / ".venv/bin/keepstep").symlink_to(checkout.folder / "build/keepstep")
    checkout.require("# And once more.\n")
    checkout.run("scripts/setup.sh")
    assert os.readlink(checkout.folder / ".venv/bin/keepstep") == str(checkout.folder / "build/keepstep")


@pytest.mark.long
def test_what_cannot_be_installed_leaves_the_old_environment(checkout):
    before = checkout.key()
    requirements = checkout.folder / "requirements.lock"
    stands = requirements.read_text()
    checkout.require("./no-such-package\n")
    assert "no-such-package" in checkout.run("source .venv/bin/activate && scripts/setup.sh", ok=False)
    assert checkout.key() == before
    assert checkout.prefix() == checkout.folder / ".venv"
    requirements.write_text(stands)


@pytest.mark.long
def test_a_setup_that_is_killed_leaves_the_old_environment_and_the_next_one_ends_it(checkout):
    before = checkout.key()
    checkout.require("# For the one that is killed.\n")
    process = subprocess.Popen(
        ["bash", "scripts/setup.sh"], cwd=checkout.folder, env=checkout.environment(), start_new_session=True
    )
    try:
        while not (checkout.folder / ".venv.new").exists():  # the new one is being made
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.001)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert checkout.key() == before
    assert checkout.prefix() == checkout.folder / ".venv"
    checkout.run("scripts/setup.sh")
    assert checkout.key() != before
    assert checkout.prefix() == checkout.folder / ".venv"


COMPILES = "[ -x .venv/bin/python ] && [ -e .venv/.keepstep-begun ] && echo it compiles >> said"


@pytest.mark.long
def test_a_new_environment_can_be_compiled_with_while_it_is_completed(tmp_path):
    checkout = Checkout(tmp_path / "a b")
    checkout.run(f"scripts/setup.sh run bash -c '{COMPILES}'")
    assert (checkout.folder / "said").read_text() == "it compiles\n"
    assert checkout.prefix() == checkout.folder / ".venv"
    assert checkout.key()
    inode = os.stat(checkout.folder / ".venv").st_ino
    checkout.run(f"scripts/setup.sh run bash -c '{COMPILES}'")
    assert (checkout.folder / "said").read_text() == "it compiles\n" * 2
    assert not (checkout.folder / ".venv/.keepstep-tests").exists(), "what only tests need is installed for tests"
    checkout.run("scripts/setup.sh")
    assert (checkout.folder / ".venv/.keepstep-tests").exists()
    assert os.stat(checkout.folder / ".venv").st_ino == inode
    assert not list(checkout.folder.glob(".venv?*"))


@pytest.mark.long
def test_packages_that_cannot_be_installed_are_told_although_all_compiled(tmp_path):
    checkout = Checkout(tmp_path / "a b")
    checkout.require("./no-such-package\n")
    assert "no-such-package" in checkout.run(f"scripts/setup.sh run bash -c '{COMPILES}'", ok=False)
    assert (checkout.folder / "said").exists()
    checkout.require("")
    checkout.run("scripts/setup.sh")
    assert checkout.prefix() == checkout.folder / ".venv"


@pytest.mark.long
def test_a_failed_build_ends_the_download_and_the_next_setup_completes_the_environment(tmp_path):
    """The index takes the call of pip and never answers."""
    checkout = Checkout(tmp_path / "a b")
    checkout.require(f"package==1.0 --hash=sha256:{'0' * 64}\n")
    index = socket.create_server(("127.0.0.1", 0))
    calls = []

    def take_call():
        calls.append(index.accept()[0])
        (checkout.folder / "called").touch()

    thread = threading.Thread(target=take_call, daemon=True)
    thread.start()
    checkout.run(
        "scripts/setup.sh run bash -c 'until [ -e called ]; do sleep 0.01; done; exit 3'", ok=False,
        PIP_INDEX_URL=f"http://127.0.0.1:{index.getsockname()[1]}/simple", PIP_FIND_LINKS="",
        PIP_CONFIG_FILE=os.devnull, PIP_DEFAULT_TIMEOUT="600",
    )  # fmt: skip
    thread.join()
    with calls[0] as call, index:
        call.settimeout(60)
        while call.recv(65536):  # ends with the process that called
            pass
    assert not list((checkout.folder / "cache").glob("keepstep/*")), "a part of the packages is left in the cache"
    checkout.require("")
    checkout.run("scripts/setup.sh")
    assert checkout.prefix() == checkout.folder / ".venv"
    assert not list(checkout.folder.glob(".venv?*"))


@pytest.fixture
def without_packages(tmp_path):
    """PATH begins with an apt-get that only notes what it is asked to install, and nothing is installed."""
    programs = tmp_path / "programs"
    programs.mkdir()
    said = "2 newly installed\\nNeed to get 3 MB of archives.\\nGet:1 slurmd\\nSetting up g++ (1) ...\\n"
    for name, does in {
        "dpkg-query": "exit 1",
        "sudo": 'exec "$@"',
        "apt-get": f"[ $1 = update ] || {{ echo \"$@\" > '{tmp_path}/asked'; printf '{said}'; }}",
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{does}\n")
        (programs / name).chmod(0o755)
    return f"{programs}:{os.environ['PATH']}"


def test_system_packages_that_are_missing_are_installed_and_those_of_tests_only_for_tests(tmp_path, without_packages):
    checkout = Checkout(tmp_path / "a b")
    said = checkout.run("scripts/setup.sh run", PATH=without_packages)
    to_run = (tmp_path / "asked").read_text().split()
    assert f"setup: apt: installing {len(to_run) - 3} packages" in said  # less `install` and two options
    assert "apt: Need to get 3 MB of archives.\napt: [1/2] g++\n" in said
    assert "Get:1" not in said
    checkout.run("scripts/setup.sh", PATH=without_packages)
    to_test = (tmp_path / "asked").read_text().split()
    assert set(to_test) - set(to_run) == {"iproute2", "iperf3", "slurmctld", "slurmd", "slurm-client", "munge"}
    assert "g++" in to_run
