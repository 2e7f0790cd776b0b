"""Which torch is refused, and that all places that name the oldest one agree."""

import re
from pathlib import Path

import pytest

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
