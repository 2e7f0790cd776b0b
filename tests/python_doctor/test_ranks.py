"""What ranks of the doctor's jobs measure and compare, with a process group that the tests make."""

import pytest
import torch
import torch.distributed as dist

from keepstep.doctor.jobs import loopback, peer


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(loopback, "BYTES", 4096)
    monkeypatch.setattr(peer, "BYTES", 4096)
    monkeypatch.setattr(dist, "barrier", lambda group=None: None)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)


def reduce_with(monkeypatch, change):
    def all_reduce(tensor, group):
        tensor.add_(loopback.numbers(2))
        change(tensor)

    monkeypatch.setattr(dist, "all_reduce", all_reduce)


def test_right_sums_have_a_rate(small, monkeypatch):
    reduce_with(monkeypatch, lambda tensor: None)
    assert loopback.rate("TLS", None, [0, 2]) > 0


def test_one_wrong_sum_is_found(small, monkeypatch):
    reduce_with(monkeypatch, lambda tensor: tensor[777].add_(1))
    with pytest.raises(RuntimeError, match="1 of 1024 sums over TLS are wrong"):
        loopback.rate("TLS", None, [0, 2])


def test_numbers_differ_by_place_and_rank():
    zero, one = loopback.numbers(0)[:2000], loopback.numbers(1)[:2000]
    assert torch.equal(one - zero, torch.ones(2000))
    assert len(zero.unique()) == 1021


@pytest.mark.parametrize("ahead_s", [5.0, -5.0])
def test_a_clock_that_is_ahead_has_a_positive_offset(monkeypatch, ahead_s):
    now = [1000.0]
    monkeypatch.setattr(peer.time, "time", lambda: now[0])

    def exchange(tensor, rank):
        """A second there, the answer, a second back."""
        tensor.fill_(now[0] + 1 + ahead_s)
        now[0] += 2

    monkeypatch.setattr(dist, "send", lambda tensor, rank: None)
    monkeypatch.setattr(dist, "recv", exchange)
    assert peer.offset(0, here=0, there=1) == (ahead_s, 2.0)


def test_what_a_peer_sent_is_compared(small, monkeypatch):
    sent = []
    monkeypatch.setattr(dist, "send", lambda tensor, rank: sent.append(rank))
    monkeypatch.setattr(dist, "recv", lambda tensor, rank: tensor.copy_(peer.pattern(1)))
    assert peer.transfer(0, sender=1, receiver=0) == 0.0 and sent == [1]

    def one_flipped(tensor, rank):
        tensor.copy_(peer.pattern(1))[5] ^= 1

    monkeypatch.setattr(dist, "recv", one_flipped)
    with pytest.raises(RuntimeError, match="1 of 1024 numbers from rank 1 came wrong"):
        peer.transfer(0, sender=1, receiver=0)
