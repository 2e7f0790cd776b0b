"""scripts/test_all.py: what passed on a tree is not run again, whatever happened in between."""

import os
import signal
import subprocess
import sys
import time

import pytest
from checkout import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import test_all
from test_all import PAGES_AND_PYTHON, Stage


@pytest.fixture
def tree(tmp_path):
    """A repository with a file and a page, and what to run in it; each stage tells in a file that it ran."""
    root = tmp_path / "a b"
    root.mkdir()
    for command in (
        "git init -q", "git config user.name t", "git config user.email t@t", "echo 1 > code", "echo 1 > page.md",
        "printf '/build/\\n/ran\\n' > .gitignore", "git add -A", "git commit -qm one",
    ):  # fmt: skip
        subprocess.run(command, shell=True, cwd=root, check=True)
    return root


def ran(tree):
    path = tree / "ran"
    names = path.read_text().split() if path.exists() else []
    path.unlink(missing_ok=True)
    return names


def tells(name, then="true", **how):
    return Stage(name, f"echo {name} >> ran; {then}", **how)


def call(tree, stages, *words):
    return test_all.main(list(words), stages, tree)


def test_what_passed_is_not_run_again_and_what_failed_is(tree, capsys):
    stages = [tells("a", "echo 3 passed in 1.00s"), tells("b", "echo 1 failed in 2.00s; false"), tells("c")]
    assert call(tree, stages) == 1
    assert ran(tree) == ["a", "b", "c"]
    assert "| b | FAILED | 0 | 1 failed in 2.00s |" in capsys.readouterr().out
    assert call(tree, [stages[0], tells("b", "echo 1 passed in 2.00s"), stages[2]]) == 0
    assert ran(tree) == ["b"]
    said = capsys.readouterr().out
    assert "| a | passed | 0 | 3 passed in 1.00s |" in said
    assert "| b | passed | 0 | 1 passed in 2.00s |" in said


def test_what_this_machine_cannot_run_has_not_passed(tree, capsys):
    stages = [tells("a", "echo '1 passed, 2 skipped in 1.00s'"), tells("b", "echo '7 skipped, 1 deselected in 0.08s'")]
    assert call(tree, stages) == 0
    assert "| b | skipped | 0 | 7 skipped, 1 deselected in 0.08s |" in capsys.readouterr().out
    ran(tree)
    assert call(tree, stages) == 0
    assert ran(tree) == ["b"]


def test_a_change_of_a_file_counts_before_it_is_committed_and_afterwards_does_not_count_twice(tree):
    stages = [tells("a"), tells("b")]
    call(tree, stages)
    ran(tree)
    (tree / "new").write_text("2")
    assert call(tree, stages) == 0
    assert ran(tree) == ["a", "b"]
    subprocess.run("git add -A; git commit -qm two", shell=True, cwd=tree, check=True)
    assert call(tree, stages) == 0
    assert ran(tree) == []
    (tree / "new").unlink()
    assert call(tree, stages) == 0  # the earlier tree
    assert ran(tree) == []


def test_pages_count_for_those_that_read_them(tree):
    stages = [tells("a"), tells("reader", unread=())]
    call(tree, stages)
    ran(tree)
    (tree / "page.md").write_text("2")
    assert call(tree, stages) == 0
    assert ran(tree) == ["reader"]


def test_python_does_not_count_for_the_engine_alone(tree):
    stages = [tells("a"), tells("engine", unread=PAGES_AND_PYTHON), tells("reader", unread=())]
    call(tree, stages)
    ran(tree)
    (tree / "module.py").write_text("2")
    assert call(tree, stages) == 0
    assert ran(tree) == ["a", "reader"]
    (tree / "source.cc").write_text("2")
    assert call(tree, stages) == 0
    assert ran(tree) == ["a", "engine", "reader"]


def test_neither_index_nor_objects_of_the_repository_change(tree):
    def objects():
        return sorted(path for path in (tree / ".git" / "objects").rglob("*") if path.is_file())

    (tree / "new").write_text("never committed")
    before, index = objects(), (tree / ".git" / "index").read_bytes()
    call(tree, [tells("a")])
    assert objects() == before
    assert (tree / ".git" / "index").read_bytes() == index


def test_a_tree_that_changes_while_a_stage_runs_keeps_no_result_of_it(tree, capsys):
    assert call(tree, [tells("a", "echo 2 > code"), tells("b")]) == 1
    assert "| a | not run | | |" in capsys.readouterr().out
    assert ran(tree) == ["a", "b"]
    assert call(tree, [tells("a", "echo 2 > code"), tells("b")]) == 0
    assert ran(tree) == ["a"]


def test_one_stage_or_a_group_alone_and_once_more(tree, capsys):
    stages = [tells("a"), tells("long/x"), tells("long/y")]
    assert call(tree, stages, "--only", "long") == 0
    assert ran(tree) == ["long/x", "long/y"]
    assert call(tree, stages, "--only", "long/y", "--fresh") == 0
    assert ran(tree) == ["long/y"]
    assert call(tree, stages, "--list") == 0
    assert "| a | not run | | |" in capsys.readouterr().out
    assert ran(tree) == []
    with pytest.raises(SystemExit):
        call(tree, stages, "--only", "longer")
    assert "no stage 'longer'" in capsys.readouterr().err


def test_ctrl_c_reaches_the_stage_and_the_next_call_goes_on_there(tree):
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'scripts')!r}); import test_all; from pathlib import Path\n"
        "from test_all import Stage\n"
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored in the background
        "stages = [Stage('a', 'echo a >> ran'),\n"
        "          Stage('b', 'trap \"echo interrupted >> ran; exit 1\" INT; echo b >> ran; '\n"
        "                     '[ -f build/go ] || while :; do sleep 0.05; done'),\n"
        "          Stage('c', 'echo c >> ran')]\n"
        f"sys.exit(test_all.main([], stages, Path({str(tree)!r})))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    while "b" not in (tree / "ran").read_text().split() if (tree / "ran").exists() else True:
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGINT)
    assert "goes on with this stage" in process.communicate(timeout=60)[0]
    assert process.returncode == 130
    assert ran(tree) == ["a", "b", "interrupted"]
    (tree / "build" / "go").touch()
    assert subprocess.run([sys.executable, "-c", program], check=True)
    assert ran(tree) == ["b", "c"]


def test_every_file_with_long_tests_is_a_stage_and_what_was_shortened_does_not_count_as_whole():
    names = [stage.name for stage in test_all.stages(None)]
    assert len(set(names)) == len(names)
    kills = "long/integration/recovery/kill_matrix"
    assert {"cc", "python", "oldest", "fuzz", kills, "chaos", "chaos-elastic"} <= set(names)
    whole = {stage.name: stage.command for stage in test_all.stages(None)}
    shorter = {stage.name: stage.command for stage in test_all.stages(600)}
    for name in ("chaos", "chaos-elastic", "long/integration/detection/no_false_alarm"):
        assert whole[name] != shorter[name]
    assert whole["cc"] == shorter["cc"]
