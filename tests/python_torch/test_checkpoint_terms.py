"""Arguments of run.checkpoint, and the memory of its snapshots."""

import pytest
import torch
from keepstep.torch.checkpoint.terms import Terms, check_memory_every, terms_of

from keepstep._errors import KeepstepError
from keepstep.torch.checkpoint.snapshot import Pool


def test_one_value_is_for_all_places_and_a_list_for_each(tmp_path):
    found = terms_of([tmp_path, "s3://bucket/run"], [10, 100], 3, [None, 86400.0])
    assert found == (Terms(str(tmp_path), 10, 3, None), Terms("s3://bucket/run", 100, 3, 86400.0))
    assert terms_of("s3://bucket/run", 5, None, None) == (Terms("s3://bucket/run", 5, None, None),)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((["a", "b"], [1], 3, None), "1 values for 2 places"),
        ((["a", "a"], 1, 3, None), "stands there twice"),
        ((list("abcdefghi"), 1, 3, None), "9 places"),
        (([], 1, 3, None), "0 places"),
        (("a", 0, 3, None), "from 1 on"),
        (("a", 1, 0, None), "at least 1"),
        (("a", 1, 3, 0.0), "above 0"),
    ],
)
def test_what_is_wrong_is_told(arguments, says):
    with pytest.raises(KeepstepError, match=says):
        terms_of(*arguments)


def test_copies_in_memory_are_made_every_so_many_steps_but_not_in_elastic_jobs():
    for steps in (None, 1):
        check_memory_every(steps, elastic=True)
    for steps in (2, 1000):
        check_memory_every(steps, elastic=False)
        with pytest.raises(KeepstepError, match=f"memory_every={steps}.*elastic"):
            check_memory_every(steps, elastic=True)
    for wrong in (0, -1, True, 1.0, "2", 10**7):
        with pytest.raises(KeepstepError, match="a number of steps from 1 to 1,000,000"):
            check_memory_every(wrong, elastic=False)


def test_memory_of_snapshots_is_used_again_where_it_fits():
    pool = Pool()
    small, large = {"a": torch.zeros(2)}, {"a": torch.zeros(3)}
    first = pool.take(small)
    second = pool.take(small)
    assert first.tensors["a"].data_ptr() != second.tensors["a"].data_ptr()
    pool.give_back(first)
    assert pool.take(small).tensors["a"] is first.tensors["a"]
    pool.give_back(second)
    assert pool.take(large).tensors["a"].shape == (3,)
    assert pool.take(small).tensors["a"] is not second.tensors["a"], "what does not fit any more is let go of"
