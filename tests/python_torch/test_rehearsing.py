"""What stands in for the world while a spare rehearses."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from keepstep._options import RecoverOptions
from keepstep.torch.distributed.rehearsal_comm import RehearsalCommunicator
from keepstep.torch.distributed.work import DONE
from keepstep.torch.recovery import rehearsal

FLOAT, INT64 = 0, 8  # as the engine numbers them


def numbers(*values):
    return torch.tensor(values, dtype=torch.float32)


def test_sums_leave_what_was_given_and_gathers_repeat_it():
    comm = RehearsalCommunicator(rank=2, world=3)
    mine, places = numbers(1, 2), [torch.zeros(2) for _ in range(3)]
    comm.all_reduce(0, mine.data_ptr(), 2, FLOAT, 0, -1)
    comm.all_gather(0, mine.data_ptr(), [place.data_ptr() for place in places], 8, -1)
    assert all(torch.equal(place, numbers(1, 2)) for place in places)


def test_a_part_that_is_scattered_is_that_of_this_rank_in_its_group():
    comm = RehearsalCommunicator(rank=2, world=3)
    group = comm.create_group([0, 2], "pair")
    sources = [numbers(1, 2), numbers(3, 4)]
    target = torch.zeros(2)
    comm.reduce_scatter(group, [s.data_ptr() for s in sources], target.data_ptr(), 2, FLOAT, 0, -1)
    assert torch.equal(target, numbers(3, 4))
    wide = torch.tensor([5, 6, 7], dtype=torch.int64)
    got = torch.zeros(3, dtype=torch.int64)
    comm.reduce_scatter(0, [wide.data_ptr()] * 3, got.data_ptr(), 3, INT64, 0, -1)
    assert torch.equal(got, wide)


def test_what_others_would_send_is_zeros():
    comm = RehearsalCommunicator(rank=1, world=2)
    target = numbers(7, 7)
    comm.receive(0, target.data_ptr(), 8, 0, 0, -1)
    assert torch.equal(target, torch.zeros(2))
    target.fill_(7)
    comm.scatter(0, [], target.data_ptr(), 8, 0, -1)
    assert torch.equal(target, torch.zeros(2))


def test_each_operation_is_complete_and_watchers_are_told():
    comm = RehearsalCommunicator(rank=1, world=2)
    op = comm.barrier(0, -1)
    assert comm.test(op)[1] == DONE and comm.wait(op)[0] == op
    comm.watch(op)
    assert comm.next_completed() == [comm.test(op)]
    comm.close()
    assert comm.next_completed() == []


def test_the_store_answers_like_one_and_refuses_what_only_a_peer_would_set():
    store = rehearsal.Rehearsal.__new__(rehearsal.Rehearsal)
    store._keys = {}
    assert store.ask("set", "a", b"1") == (True, b"1")
    assert store.ask("get", "a", b"") == (True, b"1")
    assert store.ask("add", "n", b"2") == (True, b"2")
    assert store.ask("add", "n", b"-5") == (True, b"-3")
    assert store.ask("compare_set", "c", b"0:x") == (True, b"x")
    assert store.ask("compare_set", "c", b"1:yz") == (True, b"x")
    assert store.ask("compare_set", "c", b"1:xz") == (True, b"z")
    assert store.ask("check", "nobody", b"")[0] is False
    assert store.ask("count", "", b"") == (True, b"3")
    assert store.ask("wait", "nobody", b"")[0] is True
    assert store.ask("delete", "a", b"")[0] is True and store.ask("delete", "a", b"")[0] is False
    with pytest.raises(RuntimeError, match="has no peers, and something waits for one to set 'nobody'"):
        store.ask("get", "nobody", b"")


@pytest.mark.parametrize(("world", "gpus", "wanted"), [(2, 0, True), (1, 0, False), (2, 1, False)])
def test_only_a_spare_of_several_ranks_that_sees_no_gpu_rehearses(monkeypatch, world, gpus, wanted):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    session = SimpleNamespace(
        spare=True,
        assignment=None,
        welcome=SimpleNamespace(world=world),
        store=lambda *_, **__: (True, False, True, b"0"),
    )
    assert rehearsal.wanted(session, RecoverOptions()) is wanted
    assert rehearsal.wanted(session, RecoverOptions(rehearse=True)) is wanted
    assert not rehearsal.wanted(session, RecoverOptions(rehearse=False))


COMPILES = """
import torch
from keepstep.torch.recovery import rehearsal
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(2)).sum().backward()
optimizer.step()
assert not rehearsal.compiles()
torch.compile(model) if {wrapped} else model.compile()
assert rehearsal.compiles()
"""


@pytest.mark.parametrize("wrapped", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_script_that_calls_compile_is_told_from_one_that_only_trains(wrapped):
    # In a process of its own: others of this one may have compiled something.
    subprocess.run([sys.executable, "-c", COMPILES.format(wrapped=wrapped)], check=True)


def test_a_value_that_was_rounded_to_float32_counts_as_the_same():
    assert rehearsal._same(0.1, float(torch.tensor(0.1)))
    assert rehearsal._same([1, {"a": "b"}], [1, {"a": "b"}])
    assert not rehearsal._same(0.1, 0.1001)
    assert not rehearsal._same(1e300, 1e301)
    assert not rehearsal._same([1], [2])


def test_random_numbers_go_on_as_if_nothing_had_drawn_any():
    import random

    torch.manual_seed(5)
    random.seed(5)
    state = rehearsal._RandomState()
    first = (torch.rand(3), random.random())
    state.put_back()
    assert torch.equal(torch.rand(3), first[0]) and random.random() == first[1]
