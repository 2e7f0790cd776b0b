"""What the first worker imported is learned beside the starts of workers, whatever the imports do."""

import pytest

from harness import finish, start
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


@pytest.mark.parametrize(("how", "code"), [("kill", 0), ("exit", 1)])
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
