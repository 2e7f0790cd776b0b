"""What ranks waited for the disk is summed up by rank and told."""

import json

import pytest

from keepstep.report.data_waits import DataWaits, data_waits_of
from keepstep.report.words import waited

STEP = {"step": 1, "t": 1.0, "mono": 1.0}


def test_waits_are_summed_by_rank_and_a_step_made_again_counts_once():
    lines = [
        STEP | {"data_waits_0": {"batches": 2, "page_faults": 30, "seconds": 0.5}},
        STEP | {"step": 2, "data_waits_0": {"batches": 1, "page_faults": 1, "seconds": 0.25}},
        STEP | {"step": 2, "data_waits_12": {"batches": 1, "page_faults": 4, "seconds": 0.125}},
        STEP | {"step": 2, "data_waits_0": {"batches": 3, "page_faults": 2, "seconds": 0.75}},
        STEP | {"step": 3, "loss": 0.5},
    ]
    found = data_waits_of(lines)
    assert found == [DataWaits(0, 2, 5, 32, 1.25), DataWaits(12, 1, 1, 4, 0.125)]
    assert waited(found[0]) == "rank 0 waited 1.250 s for 5 batches in 2 steps (32 pages came from a disk)"


@pytest.mark.parametrize("value", [3, None, [], {"batches": "x", "seconds": "nan"}])
def test_what_a_user_logged_under_such_a_name_breaks_nothing(value):
    lines = [json.loads(json.dumps(STEP | {"data_waits_0": value, "data_waits_x": {}}))]
    assert sum(waits.batches for waits in data_waits_of(lines)) == 0
