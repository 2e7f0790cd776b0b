"""What a rank votes for: any flipped bit of a gradient or of the protected state changes it, and nothing else does."""

from types import SimpleNamespace

import pytest
import torch

from keepstep._errors import KeepstepError
from keepstep.torch.data_parallel import replicas
from keepstep.torch.integrity import digests
from keepstep.torch.integrity.digests import Digests
from keepstep.torch.state.registry import Registry
from keepstep.torch.tensors.digest import digest, on_device


class Heard:
    """Stands for session and engine."""

    def __init__(self, mode="auto", every=0):
        self.welcome = SimpleNamespace(digests=mode, digest_every=every)
        self.engine = self
        self.recorded = {}
        self.notes = []

    def record_digest(self, step, gradients, state):
        self.recorded[step] = (gradients, state)

    def note(self, event, step, because):
        self.notes.append((event, step, because))


def flipped(tensor, index, bit):
    octets = tensor.detach().reshape(-1).view(torch.uint8)
    octets[index * tensor.element_size() + bit // 8] ^= 1 << bit % 8


@pytest.mark.parametrize("function", [digest, on_device])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.uint8])
def test_every_bit_of_every_tensor_counts(function, dtype):
    tensors = [torch.arange(7).to(dtype), torch.zeros(3, 2, dtype=dtype)]
    before = function(tensors)
    assert function([tensor.clone() for tensor in tensors]) == before
    for tensor in tensors:
        for index in range(tensor.numel()):
            for bit in range(8 * tensor.element_size()):
                flipped(tensor, index, bit)
                assert function(tensors) != before, f"element {index}, bit {bit}"
                flipped(tensor, index, bit)
    assert function(tensors[::-1]) != before


def test_a_gradient_that_is_not_there_is_not_one_of_zeros():
    there = torch.zeros(2)
    assert len({digest([None, there]), digest([there, None]), digest([there, there]), digest([there])}) == 4


def test_memory_that_does_not_lie_together_counts_by_its_values():
    values = torch.arange(6.0).reshape(2, 3)
    assert digest([values.t()]) == digest([values.t().contiguous()])


def voter(heard, monkeypatch, why_not=None):
    model = torch.nn.Linear(3, 2)
    registry = Registry()
    registry.add("model", model)
    registry.add("optimizer", torch.optim.SGD(model.parameters(), lr=0.1))
    registry.add("seen_here", {"losses": torch.tensor(4.0), "name": "x"})
    monkeypatch.setattr(replicas, "wrapped_parameters", lambda: {id(p) for p in model.parameters()})
    monkeypatch.setattr(replicas, "why_gradients_may_differ", lambda _world_size: why_not)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    votes = Digests(heard, registry)
    votes.enter(0, 2)
    return votes, model, registry


def test_the_state_is_compared_every_so_many_steps_and_its_small_values_too(monkeypatch):
    heard = Heard(every=2)
    votes, model, registry = voter(heard, monkeypatch)
    for step in (1, 2, 3, 4):
        votes.record(step)
    gradients, state = heard.recorded[2]
    assert heard.recorded == {1: (gradients, 0), 2: (gradients, state), 3: (gradients, 0), 4: (gradients, state)}
    registry.objects["seen_here"]["name"] = "y"  # a script may let these differ
    registry.objects["seen_here"]["losses"].zero_()
    votes.record(10)
    assert heard.recorded[10] == (gradients, state)
    registry.objects["optimizer"].param_groups[0]["lr"] = 0.2
    votes.record(6)
    assert heard.recorded[6] == (gradients, heard.recorded[6][1]) and heard.recorded[6][1] != state
    flipped(model.bias, 1, 3)
    votes.record(8)
    assert heard.recorded[8][1] not in (state, heard.recorded[6][1])


def test_what_forward_changes_on_each_rank_is_not_compared(monkeypatch):
    heard = Heard(every=1)
    votes, _, registry = voter(heard, monkeypatch)
    registry.add("other", torch.nn.BatchNorm1d(4))
    votes.record(1)
    registry.objects["other"].running_mean += 1
    votes.record(2)
    registry.objects["other"].weight.data += 1
    votes.record(3)
    states = [heard.recorded[step][1] for step in (1, 2, 3)]
    assert states[0] == states[1] != states[2]


def test_where_gradients_may_differ_nothing_is_compared_and_rank_0_says_so_once(monkeypatch, capsys):
    heard = Heard(every=1)
    votes, _, _ = voter(heard, monkeypatch, why_not="each rank has its own model")
    votes.record(1)
    votes.record(2)
    assert heard.recorded == {}
    because = "gradients and state are not compared between ranks: each rank has its own model"
    assert heard.notes == [("not_compared", 1, because)]
    assert "each rank has its own model" in capsys.readouterr().err


def test_sparse_gradients_are_left_out_or_refused(monkeypatch):
    for mode, refused in (("auto", False), ("on", True)):
        heard = Heard(mode)
        votes, model, _ = voter(heard, monkeypatch)
        model.weight.grad = torch.ones(2, 3).to_sparse()
        if refused:
            with pytest.raises(KeepstepError, match="--digests=on: a gradient has the layout"):
                votes.record(1)
        else:
            votes.record(1)
        assert heard.recorded == {}


def test_off_and_alone_nothing_is_computed(monkeypatch):
    monkeypatch.setattr(digests, "digest", lambda _tensors: pytest.fail("it was computed"))
    heard = Heard("off", every=1)
    votes, _, _ = voter(heard, monkeypatch)
    votes.record(1)
    alone = Heard("on", every=1)
    votes, _, _ = voter(alone, monkeypatch)
    votes.enter(0, 1)
    votes.record(1)
    assert heard.recorded == alone.recorded == {}
