"""`keepstep.data.Blend`: shares at every point, epochs of the sources, the order as a function of the position."""

from collections import Counter
from fractions import Fraction

import pytest
from test_token_dataset import write

from keepstep import KeepstepError
from keepstep.data import Blend


def blend(weights, lengths):
    return Blend.of({name: range(length) for name, length in lengths.items()}, weights)


def test_shares_hold_at_every_point():
    mixed = blend({"web": 0.7, "code": 0.2, "books": 0.1}, {"web": 50, "code": 30, "books": 20})
    assert mixed.weights == {"web": Fraction(7, 10), "code": Fraction(1, 5), "books": Fraction(1, 10)}
    starts = {"web": range(50), "code": range(50, 80), "books": range(80, 100)}
    seen = Counter()
    for done, number in enumerate(mixed.job_order(seed=5, position=0, count=1000), start=1):
        seen[next(name for name, numbers in starts.items() if number in numbers)] += 1
        for name, weight in mixed.weights.items():
            assert abs(seen[name] - done * weight) < 1


def test_each_source_has_epochs_of_its_own():
    mixed = blend({"a": 3, "b": 1}, {"a": 6, "b": 5})
    order = mixed.job_order(seed=1, position=0, count=80)
    of_a = [number for number in order if number < 6]
    of_b = [number for number in order if number >= 6]
    assert len(of_a) == 60 and len(of_b) == 20
    for epoch in range(10):
        assert sorted(of_a[6 * epoch : 6 * epoch + 6]) == list(range(6))
    for epoch in range(4):
        assert sorted(of_b[5 * epoch : 5 * epoch + 5]) == list(range(6, 11))
    assert of_a[:6] != of_a[6:12]


def test_a_position_says_all():
    mixed = blend({"a": 1 / 3, "b": 2 / 3}, {"a": 100, "b": 10})
    whole = mixed.job_order(seed=9, position=0, count=300)
    for position in (0, 1, 17, 299):
        assert mixed.job_order(seed=9, position=position, count=1) == whole[position : position + 1]
    assert len(mixed.job_order(seed=9, position=10**12, count=3)) == 3
    assert mixed.job_order(seed=8, position=0, count=300) != whole


def test_without_shuffling_sources_keep_their_order():
    mixed = blend({"a": 1, "b": 1}, {"a": 3, "b": 2})
    order = mixed.job_order(seed=9, position=0, count=8, shuffle=False)
    assert [n for n in order if n < 3] == [0, 1, 2, 0]
    assert [n for n in order if n >= 3] == [3, 4, 3, 4]


def test_corpora_are_opened_by_their_prefixes(tmp_path):
    a, b = write(tmp_path / "a", [[1] * 100]), write(tmp_path / "b", [[2] * 100])
    mixed = Blend({a: 0.5, b: 0.5}, sequence_length=9)
    assert len(mixed) == 22
    assert mixed[0].unique().tolist() == [1] and mixed[11].unique().tolist() == [2]
    mixed.will_need([0, 11])
    with pytest.raises(IndexError, match="sample 22 of a blend, which has 22"):
        mixed[22]


def test_weights_that_no_short_period_has_are_rounded():
    mixed = blend({"a": 2**0.5, "b": 1}, {"a": 1, "b": 1})
    assert mixed.weights["a"].denominator <= 2**20
    assert abs(float(mixed.weights["a"]) - 2**0.5 / (1 + 2**0.5)) < 2**-20


def test_mistakes_are_named():
    with pytest.raises(KeepstepError, match="the weight of 'a' is -1"):
        blend({"a": -1}, {"a": 1})
    with pytest.raises(KeepstepError, match="'a' is empty"):
        blend({"a": 1}, {"a": 0})
    with pytest.raises(KeepstepError, match="Blend"):
        blend({}, {})
    with pytest.raises(KeepstepError, match=r"sources \['a'\], weights of \['b'\]"):
        Blend.of({"a": range(3)}, {"b": 1})
