"""Launches in shell scripts: where they are found, and what is left alone."""

import pytest

from keepstep.migrate.outcome import MigrateError
from keepstep.migrate.script import rewrite
from keepstep.migrate.shell import commands


def words(text):
    return [[word.raw for word in command.words] for command in commands(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b; c && d | e &\n f", [["a", "b"], ["c"], ["d"], ["e"], ["f"]]),
        ("a 'b; c' \"d $(e; 'f') g\" h\\ i", [["a", "'b; c'", "\"d $(e; 'f') g\"", "h\\ i"]]),
        ("a \\\n  b # c\nd", [["a", "b"], ["d"]]),
        ("a 2>&1 >> b <c &> d e", [["a", "e"]]),
        ("a=(b # c)\n d)\ne", [["a=(b # c)\n d)"], ["e"]]),
        ('a "it\'s" $((1 << 2)) ${b:-c d} `e f`', [["a", '"it\'s"', "$((1 << 2))", "${b:-c d}", "`e f`"]]),
        ("a <<E x\nb c\nE\nd", [["a", "x"], ["b", "c"], ["d"]]),
        ("a <<-'E'\n\tb\n\tE\nd <<<c", [["a"], ["b"], ["d"]]),
        ("(a) { b; }", [["a"], ["{", "b"], ["}"]]),
        ("a 'b", [["a", "'b"]]),
    ],
)
def test_a_script_is_split_into_words_like_by_a_shell(text, expected):
    assert words(text) == expected


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("torchrun train.py", "keepstep run train.py"),
        ("exec /env/bin/torchrun train.py", "exec /env/bin/keepstep run train.py"),
        ("PY=/env/bin/python; $PY -m torch.distributed.run t.py", "PY=/env/bin/python; /env/bin/keepstep run t.py"),
        ("A=1 torchrun train.py --nnodes 2", "A=1 keepstep run train.py --nnodes 2"),
        ("torchrun --tee 3 -- train.py", "keepstep run --tee 3 -- train.py"),
        ("cmd='torchrun a.py'\neval $cmd", "cmd='keepstep run a.py'\neval $cmd"),
        ("bash -c 'cd x && torchrun a.py'", "bash -c 'cd x && keepstep run a.py'"),
        ("x=$(torchrun a.py)", "x=$(keepstep run a.py)"),
        ("torchrun --standalone $SCRIPT --nnodes 2", "keepstep run --standalone $SCRIPT --nnodes 2"),
        ("srun torchrun --nnodes=1 a.py", "srun keepstep run --nnodes=1 a.py"),
        ("srun torchrun --nnodes=$N a.py", "srun keepstep run a.py"),
        (
            "A=(--nnodes 1)\nA+=(--tee\n3)\ntorchrun ${A[@]} a.py",
            "A=(--nnodes 1)\nA+=(--tee\n3)\nkeepstep run ${A[@]} a.py",
        ),
        (
            "torchrun --logs-specs x \\\n --virtual-local-rank \\\n -r 3 a.py",
            "keepstep run \\\n -r 3 a.py",
        ),
    ],
)
def test_only_the_launch_changes(before, after):
    assert rewrite(before).text == after


@pytest.mark.parametrize(
    "text", ["echo torchrun a.py", "pip install torchrun", "# torchrun a.py", "python train.py", "which torchrun", ""]
)
def test_what_only_names_a_launcher_is_no_launch(text):
    with pytest.raises(MigrateError, match="no launch found; keepstep migrate knows torchrun"):
        rewrite(text)


def test_a_token_that_the_script_sets_is_enough():
    nodes = "torchrun --nnodes 2 --rdzv-endpoint a:1 t.py"
    assert "--token-file" in rewrite(nodes).text
    assert "--token-file" not in rewrite(f"export KEEPSTEP_TOKEN=$(cat secret)\n{nodes}").text


def test_options_that_cannot_be_seen_are_named():
    notes = rewrite("torchrun --standalone $MORE train.py").notes
    assert [(note.name, note.says) for note in notes.to_do] == [
        ("$MORE", "this file does not set it; options in it are not migrated")
    ]


def test_variables_that_stand_for_each_other_end():
    assert rewrite('A="$B"\nB="$A"\nC="--tee 3 $D"\nD="-r 3 $C"\n$A\ntorchrun $C $D a.py')
