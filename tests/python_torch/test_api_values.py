"""The values of the API that a script makes itself: State, Copies, Parity, and what `recoverable` takes."""

import re
import subprocess
import sys

import pytest

import keepstep
from keepstep import Copies, KeepstepError, Parity, State
from keepstep._state import protected_fields
from keepstep.torch.runtime.hooks import Hooks


def test_a_state_has_its_fields_as_attributes_and_protects_all_but_the_others():
    state = State(model=1, optimizer=2).with_unprotected(corpus=3)
    assert (state.model, state.optimizer, state.corpus) == (1, 2, 3)
    assert protected_fields(state) == {"model": 1, "optimizer": 2}
    assert repr(state) == "State(model=int, optimizer=int, corpus=int (unprotected))"


def test_a_field_is_set_once():
    state = State(model=1)
    with pytest.raises(KeepstepError, match=r"state\.model: the fields"):
        state.model = 2
    with pytest.raises(KeepstepError, match="'model'"):
        state.with_unprotected(model=2)


@pytest.mark.parametrize("name", ["_hidden", "with_unprotected", "__init__", "a.b", "a/b"])
def test_a_name_that_cannot_be_a_field_is_refused(name):
    with pytest.raises(KeepstepError, match=f"'{name}'"):
        State(**{name: 1})


@pytest.mark.parametrize(("data", "parity"), [(0, 2), (6, 0), (200, 56), ("6", 2), (6, True)])
def test_parity_that_cannot_be_is_refused(data, parity):
    with pytest.raises(KeepstepError, match=re.escape(f"Parity(data={data!r}, parity={parity!r})")):
        Parity(data=data, parity=parity)
    Parity(data=200, parity=55)


@pytest.mark.parametrize("nodes", [0, -1, 1.0, True])
def test_copies_that_cannot_be_are_refused(nodes):
    with pytest.raises(KeepstepError, match="at least 1 node"):
        Copies(nodes)


@pytest.mark.parametrize("wrong", [0, -1.0, float("inf"), float("nan")])
def test_a_timeout_that_cannot_be_is_refused(wrong):
    with pytest.raises(KeepstepError, match=rf"interrupt_timeout_s={wrong}\): a number of seconds above 0"):
        keepstep.recoverable(interrupt_timeout_s=wrong)


def test_redundancy_is_copies_or_parity():
    with pytest.raises(KeepstepError, match=r"redundancy='6\+2'\): keepstep.Copies\(2\), or"):
        keepstep.recoverable(redundancy="6+2")


def test_public_names_can_be_imported():
    for name in keepstep.__all__:
        assert getattr(keepstep, name) is not None
    from keepstep import Run, Step

    assert Run.__module__.startswith("keepstep.") and Step.__module__.startswith("keepstep.")


def test_an_event_that_there_is_not_is_refused():
    hooks = Hooks()
    with pytest.raises(KeepstepError, match=r"'resized'.*'interrupt', 'notice', 'resize', 'finish'"):
        hooks.add("resized", print)


def test_hooks_are_called_in_order_and_quiet_ones_raise_nothing(capfd):
    hooks, called = Hooks(), []
    hooks.add("resize", lambda before, now: called.append((before, now)))
    hooks.add("interrupt", lambda reason: 1 / 0)
    hooks.add("interrupt", called.append)
    hooks.call("resize", 2, 4)
    hooks.call_quietly("interrupt", "why")
    assert called == [(2, 4), "why"]
    assert "ZeroDivisionError" in capfd.readouterr().err
    hooks.clear()
    hooks.call("resize", 4, 2)
    assert len(called) == 2


LONG = [pytest.param(name, marks=pytest.mark.long) for name in ("torch.scale_lr", "reduce.Sum", "veto.spike")]


@pytest.mark.parametrize("name", ["data.cached", "Run", *LONG])
def test_what_pages_name_needs_no_further_import(name):
    command = f"import keepstep; keepstep.{name}"
    subprocess.run([sys.executable, "-c", command], check=True, timeout=120)
