"""c10d's store in a job of several nodes: values of the sizes that people put into one."""

import pytest

from harness import JOBS, finish, start
from several_nodes import finish_nodes, start_nodes


@pytest.mark.parametrize("nodes", [2, pytest.param(1, marks=pytest.mark.long)])
def test_values_up_to_8_mib_reach_all_ranks_and_more_is_an_error(tmp_path, nodes):
    if nodes == 1:
        job = finish(tmp_path, *start(tmp_path, JOBS / "store_values.py", "--out", tmp_path))
    else:
        job = finish_nodes(start_nodes(tmp_path, JOBS / "store_values.py", "--out", tmp_path, nodes=nodes, world=1))
    assert job.exit_code == 0, job.explain()
    assert sorted(note["rank"] for note in job.notes) == [0, 1], job.explain()
    for note in job.notes:
        assert "too large' has 8388609 bytes, 8388608 is the most" in note["refused"], job.explain()
