"""Our options and those of `keepstep run` come mixed, up to the script."""

import pytest

from keepstep.certify.options import OptionError, parse, read_table

TABLE = """
| `--nproc-per-node N\\|auto\\|cpu\\|gpu` | Ranks. | 1 | 1 to 63 | `PET_NPROC_PER_NODE` |
| `--spares N` | Workers. | 0 | 0 to 64 |  |
| `-m, --module` | a module |  |  | `PET_MODULE` |
| `-r, --redirects STREAMS` | Streams. | 0 | 0 to 3 | `PET_REDIRECTS` |
| `--journal DIR` | Where. | none | a directory |  |
| `--inject FAULT` | A fault. `--not-an-option X` | none | |  |
"""
KNOWN = read_table(TABLE)


def test_the_table_says_which_options_take_a_value():
    assert KNOWN["-m"] == ("--module", False)
    assert KNOWN["-r"] == ("--redirects", True)
    assert KNOWN["--nproc-per-node"] == ("--nproc-per-node", True)
    assert "--not-an-option" not in KNOWN


def test_all_after_the_script_is_the_scripts():
    chosen = parse(["--nproc_per_node", "4", "--steps=8", "-m", "pkg.train", "--steps", "3", "--spares", "2"], KNOWN)
    assert chosen.run == ["--nproc_per_node", "4", "-m"]
    assert chosen.script == ["pkg.train", "--steps", "3", "--spares", "2"]
    assert chosen.steps == 8
    assert chosen.number("--nproc-per-node", 1) == 4
    assert chosen.number("--spares", 0) == 0


def test_a_value_may_stand_behind_an_equals_sign():
    chosen = parse(["--spares=1", "-r", "3", "--only", "segv,stop", "train.py"], KNOWN)
    assert chosen.run == ["--spares=1", "-r", "3"]
    assert chosen.only == ["segv", "stop"]


def test_all_mistakes_are_listed_at_once():
    with pytest.raises(OptionError) as caught:
        parse(["--journal", "x", "--inject=kill", "--wrong", "--steps", "5", "--timeout", "soon"], KNOWN)
    lines = str(caught.value).splitlines()
    for part in ("--journal cannot", "--inject cannot", "no option --wrong", "--steps is '5'", "'soon'", "no script"):
        assert any(part in line for line in lines), (part, lines)
