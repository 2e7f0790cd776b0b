"""What the first worker imported is learned beside the starts of workers; a fork is never two for one."""

import os

import pytest

from harness import assert_same_history, finish, run_small, start
from zygotes import GATE, Zygote, write_package


@pytest.fixture
def zygote():
    started = Zygote()
    yield started
    started.close()


def until(zygote, op, event=None):
    """All that the zygote says, up to the first `op` (and `event`)."""
    heard = []
    while not heard or heard[-1]["op"] != op or event not in (None, heard[-1].get("event")):
        heard.append(zygote.hear())
    return heard


def test_a_worker_is_forked_while_an_import_stands_still(zygote, tmp_path):
    modules = write_package(tmp_path)
    zygote.say(op="preload", modules=modules, path=str(tmp_path), environment={})
    for number in range(3):  # while the slow module waits for its gate
        zygote.ask_for_worker(number)
        assert until(zygote, "spawned")[-1]["worker"] == number


def test_of_a_thousand_modules_those_that_do_harm_are_named_and_the_others_are_learned(zygote, tmp_path):
    modules = write_package(tmp_path)
    (tmp_path / GATE).touch()
    zygote.say(op="preload", modules=modules, path=str(tmp_path), environment={})
    heard = until(zygote, "note", "preloaded")
    assert not [word for word in heard if word["op"] == "unfit"]
    notes = [word["why"] for word in heard if word.get("event") == "preload_left_out"]
    left_out = dict(why.split(": ", 1) for why in notes if ": " in why)
    died = "the process died in it, or in what imports it"
    assert left_out == {
        "strange.every": "2 threads run",  # it imports the one that is next
        "strange.m100": "2 threads run",
        "strange.m309": died,  # m300 did, which had imported it
        "strange.m400": "ValueError: no such device",
        "strange.m509": died,
    }
    assert int(heard[-1]["why"].split()[0]) == len(modules) - 23, heard


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, str(Path(__file__).parent))
import strange.every
import os, torch, torch.distributed as dist
folder = Path(sys.argv[1])
dist.init_process_group("gloo")
if sys.argv[2] == "exit":
    sys.exit(1)
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
if first and dist.get_rank() == 1:
    os.kill(os.getpid(), 9)
dist.barrier()
print("trained", dist.get_rank())
"""


@pytest.mark.parametrize(("how", "code"), [("kill", 0), pytest.param("exit", 1, marks=pytest.mark.long)])
def test_ranks_start_again_while_imports_stand_still(tmp_path, how, code):
    write_package(tmp_path)  # without its gate
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    process, command = start(tmp_path, path, tmp_path, how, options=["--max-restarts", "1"])
    job = finish(tmp_path, process, command, limit_s=100)
    assert job.exit_code == code, job.explain()
    assert len(job.events("spawned")) >= 4 and {line["how"] for line in job.events("spawned")} == {"fork"}, (
        job.explain()
    )
    assert job.output.count("trained") == (2 if how == "kill" else 0), job.explain()


DIES_IN_BETWEEN = """
import os, signal, sys
if "keepstep.zygote" in sys.orig_argv:
    opens = os.pidfd_open
    def dies_once(pid, flags=0):  # of the worker, by the process that just forked it and is about to tell the agent
        try:
            os.close(os.open(os.path.join({folder!r}, "died"), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return opens(pid, flags)
        os.kill(os.getpid(), signal.SIGKILL)
    os.pidfd_open = dies_once
"""

STARTS_A_THREAD = """
import sys, threading
if "keepstep.zygote" in sys.orig_argv:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
"""


def use_site(folder, monkeypatch, code):
    """Every Python that is started from here on runs `code` first."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)


@pytest.mark.long
def test_a_fork_that_dies_before_the_agent_is_told_leaves_no_second_process_on_its_socket(
    tmp_path, undisturbed, monkeypatch
):
    site = tmp_path / "site"
    use_site(site, monkeypatch, DIES_IN_BETWEEN.format(folder=str(site)))
    job = run_small(tmp_path, world=2)
    assert (site / "died").exists()
    assert_same_history(job, undisturbed(2), 12)
    assert [line["how"] for line in job.events("spawned")].count("exec") == 1, job.explain()
    assert len(job.events("fork_failed")) == 1, job.explain()
    assert len({note["pid"] for note in job.notes if "entry" in note}) == 2, job.explain()


@pytest.mark.long
def test_an_unfit_zygote_forks_none_of_those_that_it_was_asked_for_before_it_said_so(
    tmp_path, undisturbed, monkeypatch
):
    reference = undisturbed(2)
    use_site(tmp_path / "site", monkeypatch, STARTS_A_THREAD)
    job = run_small(tmp_path, world=2)
    assert_same_history(job, reference, 12)
    assert [line["how"] for line in job.events("spawned")] == ["exec", "exec"], job.explain()
    assert job.events("zygote_unfit"), job.explain()
