"""Which torch is refused, and that all places that name the oldest one agree."""

import re
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from keepstep import KeepstepError
from keepstep.torch import versions

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("version", ["2.10.1+cpu", "1.13.0", "unknown"])
def test_an_older_torch_is_refused_with_the_reason_and_the_way_out(version):
    with pytest.raises(KeepstepError) as refused:
        versions.check(version)
    for words in (version, "needs torch 2.11 or newer", "its tests run with", "pip install"):
        assert words in str(refused.value)


@pytest.mark.parametrize("version", ["2.11.0+cu130", "2.15.0", "2.16.0a0+git1234", "3.0.0"])
def test_the_oldest_and_newer_ones_are_taken(version):
    versions.check(version)


def test_package_and_tests_name_the_same_oldest_torch():
    oldest = ".".join(map(str, versions.OLDEST))
    assert f'"torch>={oldest}"' in (ROOT / "pyproject.toml").read_text()
    tested = re.search(r"^torch==(\d+\.\d+)", (ROOT / "requirements-oldest.txt").read_text(), re.MULTILINE)
    assert tested is not None and tested[1] == oldest


def test_what_is_pinned_is_installed_so_that_no_test_of_the_real_thing_is_skipped():
    oldest = Path(sys.prefix).name == ".venv-oldest"
    names = ["requirements-oldest.txt"] if oldest else ["requirements.txt", "requirements-tests.txt"]
    pins = [pin for name in names for pin in (ROOT / name).read_text().splitlines()]
    for each in map(Requirement, (pin for pin in pins if pin and not pin.startswith("#"))):
        if each.marker is None or each.marker.evaluate():
            assert each.specifier.contains(metadata.version(each.name), prereleases=True), each


@pytest.mark.parametrize("name", ["", "-tests", "-oldest", "-strangers", "-docs", "-wheel"])
def test_the_lock_has_what_is_pinned_and_a_hash_of_everything(name):
    name = f"requirements{name}"
    text = (ROOT / f"{name}.lock").read_text().replace("\\\n", " ")
    locked = {}
    for line in filter(None, text.splitlines()):
        pin, *hashes = line.split(" --hash=sha256:")
        assert hashes and all(re.fullmatch(r"[0-9a-f]{64} *", each) for each in hashes), pin
        wanted = Requirement(pin)
        locked.setdefault(canonical(wanted.name), set()).add(str(wanted.specifier))
    for line in (ROOT / f"{name}.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            wanted = Requirement(line)
            assert str(wanted.specifier) in locked[canonical(wanted.name)], f"{line}: run make lock"


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()
