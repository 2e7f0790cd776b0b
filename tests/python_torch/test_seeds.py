"""Random numbers of a step follow from its seed, whoever imports numpy.random, and when."""

import subprocess
import sys

import pytest

FOUR = "[torch.rand(1).item(), random.random(), float(numpy.random.rand()), float(numpy.random.randn())]"


def drawn(lines):
    """What a fresh process prints at the end of `lines`."""
    program = "\n".join(["import random, sys", "import numpy, torch", "from keepstep.torch import seeds", *lines])
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def expected():
    return drawn(["import numpy.random", "seeds.seed_all(7 << 40 | 5)", f"print({FOUR})"])


def test_a_module_imported_after_the_seed_draws_the_same_numbers(expected):
    unused = "assert numpy.__version__ < '2' or 'numpy.random' not in sys.modules, 'seeding imported it'"
    assert drawn(["seeds.seed_all(3)", unused, "seeds.seed_all(7 << 40 | 5)", unused, f"print({FOUR})"]) == expected


def test_what_was_drawn_before_changes_nothing(expected):
    assert drawn(["seeds.seed_all(3)", FOUR, "seeds.seed_all(7 << 40 | 5)", f"print({FOUR})"]) == expected


def test_another_seed_gives_other_numbers(expected):
    assert drawn(["seeds.seed_all(8)", f"print({FOUR})"]) != expected


def test_random_begins_as_random_seed_lets_it_begin():
    """Bit for bit, whatever was left over from before: half of a pair of normal numbers is."""
    drawn_of_it = "[random.random(), random.gauss(0, 1), random.getrandbits(100)]"
    ours = drawn(["random.gauss(0, 1)", "seeds.seed_all(7 << 40 | 5)", f"print({drawn_of_it})"])
    assert ours == drawn(["random.seed(7 << 40 | 5)", f"print({drawn_of_it})"])
