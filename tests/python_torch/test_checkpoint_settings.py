"""Arguments of run.checkpoint, and the memory of its snapshots."""

import pytest
import torch

from keepstep import Destination, KeepstepError
from keepstep.torch.checkpoint.settings import check_memory_every_steps, checked
from keepstep.torch.checkpoint.snapshot import Pool


def test_a_destination_has_defaults_and_may_be_a_url_alone(tmp_path):
    assert checked([tmp_path]) == (Destination(str(tmp_path), every_steps=100, keep_last=3, max_age_s=None),)
    given = Destination("s3://bucket/run", every_steps=5, keep_last=None, max_age_s=60)
    assert checked([given, "a"]) == (given, Destination("a"))


@pytest.mark.parametrize(
    ("destinations", "message"),
    [(["a", "a"], "the destination a is given twice"), (list("abcdefghi"), "9 destinations"), ([], "0 destinations")],
)
def test_destinations_that_cannot_be_are_refused(destinations, message):
    with pytest.raises(KeepstepError, match=message):
        checked(destinations)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"url": ""}, "a folder, or s3://bucket/prefix"),
        ({"url": None}, "a folder, or s3://bucket/prefix"),
        ({"every_steps": 0}, "from 1 on"),
        ({"every_steps": 1.5}, "from 1 on"),
        ({"keep_last": 0}, "at least 1"),
        ({"max_age_s": 0.0}, "above 0"),
    ],
)
def test_a_destination_that_cannot_be_is_refused(arguments, message):
    with pytest.raises(KeepstepError, match=message):
        Destination(**({"url": "a"} | arguments))


def test_copies_in_memory_are_made_every_so_many_steps_but_not_in_elastic_jobs():
    for steps in (None, 1):
        check_memory_every_steps(steps, elastic=True)
    for steps in (2, 1000):
        check_memory_every_steps(steps, elastic=False)
        with pytest.raises(KeepstepError, match=f"memory_every_steps={steps}.*elastic"):
            check_memory_every_steps(steps, elastic=True)
    for wrong in (0, -1, True, 1.0, "2", 10**7):
        with pytest.raises(KeepstepError, match="1 to 1,000,000 steps are possible"):
            check_memory_every_steps(wrong, elastic=False)


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
