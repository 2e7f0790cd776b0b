"""Batches whose pages are on the disk only: counted as late, unless they were read ahead."""

import json
import mmap
import os

import pytest
from test_token_dataset import write

from keepstep import _engine
from keepstep.data import Blend, PackedDataset, TokenDataset
from keepstep.torch.data.data_waits import DataWaits
from keepstep.torch.step.batch_plan import BatchPlan


def evict(prefix):
    """Out of the page cache; nobody may have touched them. Skips where files are memory (tmpfs)."""
    with open(f"{prefix}.bin", "rb") as tokens:
        os.posix_fadvise(tokens.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        before = _engine.page_faults()
        with mmap.mmap(tokens.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            assert mapped[0] == 7
        if _engine.page_faults() == before:
            pytest.skip("files in this folder cannot be evicted")
        os.posix_fadvise(tokens.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def corpus(prefix):
    return write(prefix, [[7] * 50_000] * 20)


def test_a_batch_that_waits_for_the_disk_is_late_and_counted(tmp_path):
    data = TokenDataset(corpus(tmp_path / "c"), 1000)
    evict(data.prefix)
    waits = DataWaits()
    with waits:
        data.make_batch(range(0, len(data), 100))
    assert waits.batches == 1 and waits.page_faults > 0 and waits.seconds > 0
    told = json.loads(waits.line(3))["data_waits_3"]
    assert told["batches"] == 1 and told["page_faults"] == waits.page_faults
    with waits:
        data.make_batch(range(0, len(data), 100))
    assert waits.batches == 1, "the second time they are in memory"
    assert DataWaits().line(0) == ""


@pytest.mark.parametrize("kind", ["tokens", "packed", "blend"])
def test_what_run_steps_announces_is_there_in_time(tmp_path, kind):
    prefix = corpus(tmp_path / "c")
    if kind == "tokens":
        data = TokenDataset(prefix, 1000)
    elif kind == "packed":
        data = PackedDataset(prefix, 1000)
    else:
        data = Blend({prefix: 1}, sequence_length=1000)
    evict(prefix)
    _engine.read_ahead_wake()
    plan = BatchPlan(data, 40, 10, True, None, 1, 0, 1)
    plan.read_ahead(1)
    _engine.read_ahead_done()
    waits = DataWaits()
    for step in (1, 2, 3):
        samples = plan.samples(step)
        for first in range(0, 40, 10):
            with waits:
                plan.batch(samples[first : first + 10])
    assert waits.batches == 0


def test_read_ahead_rests_where_all_is_in_memory_and_wakes(tmp_path):
    data = TokenDataset(corpus(tmp_path / "c"), 1000)
    data.make_batch(range(len(data)))
    _engine.read_ahead_wake()
    before = _engine.read_ahead_done()
    for _ in range(500):
        data.will_need([1, 2, 3])
        _engine.read_ahead_done()
    done = _engine.read_ahead_done()
    assert done[1] == before[1], "nothing had to be read"
    assert 500 - 20 <= done[3] - before[3] < 500
    _engine.read_ahead_wake()
    data.will_need([1])
    assert _engine.read_ahead_done()[0] > done[0]
