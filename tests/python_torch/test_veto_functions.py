"""The vetoes that ship: not finite, and a gradient norm far above the last ones."""

from types import SimpleNamespace

import pytest
import torch

import keepstep
from keepstep.torch.state.registry import Registry


def step(number=1, gradient=1.0, loss=0.5, **protected):
    registry = Registry()
    model = torch.nn.Linear(2, 1, bias=False)
    model.weight.grad = torch.tensor([[gradient, 0.0]])
    registry.add("model", model)
    for name, item in protected.items():
        registry.add(name, item)
    return SimpleNamespace(number=number, loss=loss, has_loss=True, run=SimpleNamespace(_registry=registry))


def test_what_is_finite_is_not_vetoed_and_what_is_not_is_named():
    assert keepstep.veto.nonfinite(step()) is None
    assert keepstep.veto.nonfinite(step(loss=float("nan"))) == "the loss of this rank is nan"
    assert keepstep.veto.nonfinite(step(gradient=float("inf"))) == "a gradient is not finite"
    assert keepstep.veto.nonfinite(step(gradient=float("nan"))) == "a gradient is not finite"


def test_a_loss_scaler_needs_what_is_not_finite_so_the_veto_is_refused():
    with pytest.raises(keepstep.KeepstepError, match="'scaler' skips such updates itself"):
        keepstep.veto.nonfinite(step(scaler=torch.amp.GradScaler("cpu")))
    assert keepstep.veto.nonfinite(step(scaler=torch.amp.GradScaler("cpu", enabled=False))) is None


def test_a_spike_is_vetoed_once_enough_steps_were_seen_and_does_not_move_the_median():
    veto = keepstep.veto.spike(factor=3, window=4)
    for number in range(1, 5):
        assert veto(step(number, gradient=100.0 if number == 1 else 1.0)) is None, "too few to tell"
    assert "more than 3 times the median 1 of 4 steps" in veto(step(5, gradient=3.5))
    assert veto(step(6, gradient=2.9)) is None
    assert veto(step(7, gradient=3.5)) is not None
    assert veto(step(8, gradient=float("nan"))) is not None


def test_a_step_that_is_redone_is_judged_as_before():
    veto = keepstep.veto.spike(factor=2, window=2)
    for number, gradient in ((1, 1.0), (2, 2.0), (3, 2.9)):
        assert veto(step(number, gradient)) is None
    assert veto(step(3, 2.9)) is None, "the first try of step 3 does not count against its redo"
    assert veto(step(3, 3.1)) is not None


@pytest.mark.parametrize("factor, window", [(1.0, 16), (2.0, 0)])
def test_a_spike_needs_a_factor_and_a_window(factor, window):
    with pytest.raises(keepstep.KeepstepError, match=r"veto\.spike"):
        keepstep.veto.spike(factor, window)
