"""What `recoverable` takes for the protection of sharded state."""

import re

import pytest

import keepstep
from keepstep._recoverable import _protection


def test_two_copies_unless_something_else_is_asked_for():
    assert _protection(None, None) == (2, (0, 0))
    assert _protection(3, None) == (3, (0, 0))
    assert _protection(None, "6+2") == (1, (6, 2))
    assert _protection(None, "200+55") == (1, (200, 55))


@pytest.mark.parametrize("wrong", ["", "6", "0+2", "6+0", "200+56", "6+2+1", "six+two", "6 + 2", 6, (6, 2)])
def test_parity_that_cannot_be_is_refused(wrong):
    with pytest.raises(keepstep.KeepstepError, match=re.escape(f'parity={wrong!r}): write "K+M"')):
        keepstep.recoverable(parity=wrong)


def test_parity_and_copies_at_once_are_refused():
    with pytest.raises(keepstep.KeepstepError, match=r"with copies=2: .* one or the other"):
        keepstep.recoverable(parity="2+2", copies=2)


def test_no_copy_at_all_is_refused():
    with pytest.raises(keepstep.KeepstepError, match=r"recoverable\(copies=0\): at least 1"):
        keepstep.recoverable(copies=0)


@pytest.mark.parametrize("wrong", [0, -1.0, float("inf"), float("nan")])
def test_a_limit_on_leaving_a_step_that_is_none_is_refused(wrong):
    with pytest.raises(keepstep.KeepstepError, match=rf"recoverable\(timeout={wrong}\): a number of seconds above 0"):
        keepstep.recoverable(timeout=wrong)
