"""Settings per world size: what holds where, and which mistakes are told before training."""

import math
import sys

import pytest

import keepstep
from keepstep.scaling import everywhere, max_ranks

DEFAULTS = {"micro_batch": 8, "lr": 1e-3, "optimizer": {"betas": [0.9, 0.95], "eps": 1e-8}, "note": None}


def mistakes(overrides, defaults=DEFAULTS, **options):
    with pytest.raises(keepstep.KeepstepError) as caught:
        keepstep.scale_config(overrides, defaults, **options)
    return str(caught.value).removeprefix("scale_config: ").split("; ")


def test_each_size_has_the_defaults_and_what_is_said_for_it():
    config = keepstep.scale_config(
        {1: {"micro_batch": 16}, "2": {"lr": 2e-3}, "4-8": {"micro_batch": 2, "lr": 3e-4}, "16-": {"note": "large"}},
        DEFAULTS,
        global_batch=64,
    )
    assert config.at(1) == DEFAULTS | {"micro_batch": 16}
    assert config.at(2) == DEFAULTS | {"lr": 2e-3}
    assert config.at(3) == DEFAULTS
    for world in (4, 5, 8):
        assert config.at(world) == DEFAULTS | {"micro_batch": 2, "lr": 3e-4}
    assert config.at(9) == config.at(15) == DEFAULTS
    assert config.at(16) == config.at(100_000) == DEFAULTS | {"note": "large"}


def test_tables_in_tables_are_merged_key_by_key():
    config = keepstep.scale_config({2: {"optimizer": {"eps": 1e-6}}}, DEFAULTS)
    assert config.at(2)["optimizer"] == {"betas": [0.9, 0.95], "eps": 1e-6}
    assert config.at(1)["optimizer"] == DEFAULTS["optimizer"]
    assert config.value("optimizer.eps")(2) == 1e-6


def test_what_one_size_got_is_a_copy():
    defaults = {"optimizer": {"betas": [1, 2]}}
    config = keepstep.scale_config({2: {}}, defaults)
    config.at(2)["optimizer"]["betas"].append(3)
    defaults["optimizer"]["betas"].append(4)
    assert config.at(2) == config.at(1) == {"optimizer": {"betas": [1, 2]}}


def test_ranges_may_overlap_as_long_as_they_do_not_contradict_each_other():
    config = keepstep.scale_config({"2-8": {"lr": 2e-3}, "4-16": {"micro_batch": 4}, "8": {"lr": 2e-3}}, DEFAULTS)
    assert [config.at(n)["lr"] for n in (3, 4, 8, 9)] == [2e-3, 2e-3, 2e-3, 1e-3]
    assert [config.at(n)["micro_batch"] for n in (3, 4, 16, 17)] == [8, 4, 4, 8]


def test_ranges_that_contradict_each_other_are_named_with_the_sizes_they_share():
    assert mistakes({"2-8": {"lr": 2e-3}, "6-": {"lr": 1e-4, "micro_batch": 4}}) == [
        "'lr' is 0.002 for 2-8 and 0.0001 for 6-, and both are for 6 to 8 ranks"
    ]
    assert mistakes({"2-3": {"a": {"b": 1}}, 3: {"a": 5}}, {"a": None}) == [
        "'a.b' is a table for one of 2-3 and 3, not for both"
    ]


def test_misspelt_keys_and_values_of_another_type_are_named_with_what_was_meant():
    assert mistakes({1: {"micro_bach": 4}, 2: {"optimizer": {"bettas": []}}, 3: {"lr": "3e-4"}}) == [
        "for 1: 'micro_bach' is not in the defaults", "did you mean 'micro_batch'?",
        "for 2: 'optimizer.bettas' is not in the defaults", "did you mean 'betas'?",
        "for 3: 'lr' is '3e-4', text, and its default 0.001 is a number",
    ]  # fmt: skip
    assert mistakes({1: {"micro_batch": True}}) == [
        "for 1: 'micro_batch' is True, a truth value, and its default 8 is a number"
    ]


def test_a_micro_batch_that_does_not_fit_the_global_batch_is_named():
    assert mistakes({2: {"micro_batch": 3}, "9-12": {}, 4: {"micro_batch": 0}}, global_batch=64) == [
        "for 2: global_batch=64 is no multiple of micro_batch=3",
        "for 4: micro_batch=0 must be an integer of at least 1",
        "for 9-12: 8 micro-batches (global_batch=64 / micro_batch=8) cannot feed 12 ranks, each of which needs one",
    ]
    assert mistakes({2: {"global_batch": 12}}, DEFAULTS | {"global_batch": 8}) == [
        "for 2: global_batch=12 is no multiple of micro_batch=8"
    ]
    assert mistakes({}, {"micro_batch": 3}, global_batch=64) == [
        "by default: global_batch=64 is no multiple of micro_batch=3"
    ]


def test_an_accumulation_that_would_change_the_global_batch_is_named():
    defaults = {"micro_batch": 2, "accumulation": None}
    keepstep.scale_config({4: {"accumulation": 4}, "5": {"accumulation": 4}}, defaults, global_batch=32)
    assert mistakes({"4-5": {"accumulation": 8}}, defaults, global_batch=32) == [
        "for 4-5: accumulation=8 contradicts the global batch: global_batch=32 / micro_batch=2 are 16 micro-batches, "
        f"4 for a rank of {world}"
        for world in (4, 5)
    ]


@pytest.mark.parametrize("key", ["x", "", "0", "-1", "4-2", "1.5", 2.0, True, None, "1048577", "9999999999999", "²"])
def test_what_is_no_world_size_is_refused(key):
    (found,) = mistakes({key: {}})
    assert found.startswith(f"{key!r} is no world size")


def test_without_defaults_every_size_between_has_to_say_everything():
    config = keepstep.scale_config({1: {"a": 1}, "2-4": {"a": 2}})
    assert config.at(3) == {"a": 2}
    with pytest.raises(keepstep.KeepstepError, match="nothing is said for 5 ranks"):
        config.at(5)
    assert mistakes({1: {"a": 1}, "4-8": {"b": 2}}, None) == [
        "nothing is said for 2 to 3 ranks, and there is no default",
        "'b' is given for 4 to 8 ranks, but not for 1 rank, and there is no default", "known: a",
        "'a' is given for 1 rank, but not for 4 to 8 ranks, and there is no default", "known: b",
    ]  # fmt: skip
    assert mistakes({}, None) == ["it is empty: give world sizes or a default"]


def test_the_default_may_stand_among_the_sizes_but_not_twice():
    assert keepstep.scale_config({"default": {"a": 1}, 2: {"a": 2}}).at(9) == {"a": 1}
    assert mistakes({"default": {}}) == ["defaults are given twice, as 'default' too"]
    assert mistakes({2: 5}) == ["what is said for 2 is no table of settings but a int"]


def test_it_is_read_from_json_and_toml(tmp_path):
    (tmp_path / "a.json").write_text('{"default": {"lr": 1e-3}, "4-8": {"lr": 3e-4}}')
    assert keepstep.scale_config(tmp_path / "a.json").at(5) == {"lr": 3e-4}
    (tmp_path / "a.toml").write_text('[default]\nlr = 1e-3\n["4-8"]\nlr = 3e-4\n')
    if sys.version_info >= (3, 11):
        assert keepstep.scale_config(str(tmp_path / "a.toml")).at(5) == {"lr": 3e-4}
    else:
        with pytest.raises(keepstep.KeepstepError, match=r"TOML needs Python 3\.11"):
            keepstep.scale_config(tmp_path / "a.toml")


@pytest.mark.parametrize(
    "name, text, why",
    [
        ("a.json", '{"1": {}, "1": {}}', "'1' is a duplicate key"),
        ("a.json", "{", "cannot be read"),
        ("a.json", "[" * 100_000, "cannot be read"),
        ("a.json", "[]", "no table of world sizes"),
        ("a.json", '{"1": {"a": 1}, "3": {"a": 1}}', "nothing is said for 2 ranks"),
        ("a.json", b"\xff\xfe", "cannot be read"),
        ("a.json", " " * (2 << 20), "more than 1048576 bytes"),
        ("a.yaml", "1: {}", r"neither in \.json nor in \.toml"),
        ("no.json", None, "No such file"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_name(tmp_path, name, text, why):
    path = tmp_path / name
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(keepstep.KeepstepError, match=why) as caught:
        keepstep.scale_config(path)
    assert name in str(caught.value)


def test_a_setting_that_is_not_there_is_named():
    with pytest.raises(keepstep.KeepstepError, match=r"no 'optimizer\.lr' for 1 rank"):
        keepstep.scale_config({1: {}, "2-": {}}, DEFAULTS).value("optimizer.lr")


def most(overrides, micro=8, batch=64):
    config = keepstep.scale_config(overrides, {"micro_batch": micro})
    return max_ranks(everywhere("global_batch", batch), config.value("micro_batch"))


def test_the_most_useful_world_is_the_largest_up_to_which_all_ranks_are_fed():
    assert most({}) == 8
    assert most({"4-": {"micro_batch": 2}}) == 32
    assert most({"4-16": {"micro_batch": 2}}) == 16, "from 17 on the default feeds 8"
    assert most({"10-": {"micro_batch": 1}}) == 8, "9 cannot be passed"
    assert most({}, micro=64) == 1


def test_brute_force_agrees_on_the_most_useful_world():
    for change in (1, 3, 5, 9, 17):
        for small in (1, 2, 4, 16, 64):
            config = keepstep.scale_config({f"{change}-": {"micro_batch": small}}, {"micro_batch": 8})
            fed = [64 // config.at(world)["micro_batch"] >= world for world in range(1, 100)]
            expected = fed.index(False)
            assert most({f"{change}-": {"micro_batch": small}}) == max(expected, 1), (change, small)


def test_learning_rates_follow_their_rule():
    assert keepstep.scaled_lr(0.1, 256, 8192, "linear") == pytest.approx(3.2)
    assert keepstep.scaled_lr(0.1, 256, 1024, "sqrt") == pytest.approx(0.2)
    assert keepstep.scaled_lr(0.1, 256, 64, "sqrt") == pytest.approx(0.05)
    assert keepstep.scaled_lr(0.1, 256, 999, "constant") == 0.1
    assert keepstep.scaled_lr(0.3, 100, 50, "sqrt") == 0.3 * math.sqrt(0.5)


@pytest.mark.parametrize("base, batch, rule", [(0, 1, "linear"), (1, 0, "linear"), (1, 1, "cubic")])
def test_rates_of_nothing_and_unknown_rules_are_refused(base, batch, rule):
    with pytest.raises(keepstep.KeepstepError, match="learning rate"):
        keepstep.scaled_lr(0.1, base, batch, rule)
