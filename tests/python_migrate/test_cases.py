"""What the command prints for whole files, as a reviewer can read it."""

import os

import pytest
from migrating import CASES, file_of, migrate


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_file_is_migrated_as_recorded(case):
    done = migrate(file_of(case).name, case)
    assert done.returncode == 0, done.stderr
    for name, text in (("stdout", done.stdout), ("stderr", done.stderr)):
        if os.environ.get("KEEPSTEP_UPDATE_TRANSCRIPTS"):
            (case / name).write_text(text)
        assert text == (case / name).read_text(), name
