"""Optimizers whose step is the commit, with closures."""

import pytest
import torch

from keepstep._errors import KeepstepError
from keepstep.torch.prepared.committing import PreparedOptimizer


class Updates:
    """Runs what is to be updated, as a commit would."""

    def stepped(self, optimizer, update):
        update()


class AsksFirst(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure):
        loss = closure()
        super().step()
        return loss


class SharpnessAware(torch.optim.SGD):
    """Climbs, computes the gradients there, and goes back before it steps."""

    @torch.no_grad()
    def step(self, closure):
        for each in self.param_groups[0]["params"]:
            each.add_(each.grad)
        closure()
        super().step()


def prepared(kind):
    parameter = torch.nn.Parameter(torch.ones(4))
    optimizer = kind([parameter], lr=0.5)
    torch.optim.lr_scheduler.StepLR(optimizer, 100)  # replaces optimizer.step
    return parameter, PreparedOptimizer(optimizer, Updates())


def test_an_optimizer_without_a_closure_steps_without_one():
    parameter, optimizer = prepared(torch.optim.SGD)
    parameter.grad = torch.ones(4)
    assert optimizer.step() is None
    assert parameter.tolist() == [0.5] * 4


def test_an_optimizer_that_insists_on_a_closure_gets_one_and_gradients_are_computed_once():
    parameter, optimizer = prepared(AsksFirst)
    calls = []

    def closure():
        assert torch.is_grad_enabled()
        calls.append(1)
        loss = parameter.sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 4
    assert calls == [1]
    assert parameter.tolist() == [0.5] * 4
    with pytest.raises(KeepstepError, match=r"AsksFirst\.step needs a closure"):
        optimizer.step()


def test_gradients_in_the_middle_of_a_step_are_refused():
    parameter, optimizer = prepared(SharpnessAware)

    def closure():
        loss = parameter.sum()
        loss.backward()
        return loss

    with pytest.raises(KeepstepError, match=r"SharpnessAware\.step computes gradients again .* communicates=True"):
        optimizer.step(closure)
