"""The traceback that a worker prints: the user's lines, and ours only where the error is ours."""

import pytest

from keepstep import State, worker
from keepstep._state import protected_fields


def told(function):
    with pytest.raises(Exception) as raised:
        function()
    return worker.user_traceback(raised.value)


def caused():
    try:
        _ = State().missing
    except AttributeError as error:
        raise ValueError("of mine") from error


def test_a_mistake_is_shown_at_the_line_that_made_it():
    text = told(lambda: protected_fields(State(**{"not a name": 1})))
    assert "test_user_traceback.py" in text and "KeepstepError" in text, text
    assert worker.PACKAGE not in text, text


def test_an_error_that_is_ours_keeps_our_frames():
    text = told(lambda: worker.run_worker({}, -1, -1))
    assert "KeyError: 'environment'" in text and worker.__file__ in text, text


def test_a_cause_is_shown_too():
    text = told(caused)
    assert "ValueError: of mine" in text and "AttributeError" in text, text
