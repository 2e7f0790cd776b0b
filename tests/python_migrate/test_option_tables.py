"""Our tables of other launchers' options, and the page of `keepstep run`."""

import pytest
from migrating import options_of_run

from keepstep.migrate import accelerate_options, torchrun_options


def test_kept_options_mean_the_same_in_keepstep_run():
    page = options_of_run()
    for name, takes_value in torchrun_options.KEPT.items():
        assert page[name][1] == takes_value, name


def test_options_without_effect_and_refused_ones_are_those_of_the_page():
    page = options_of_run()
    without_effect = {name for name, (section, _) in page.items() if "no effect" in section}
    refused = {name: value for name, (section, value) in page.items() if section.startswith("Not supported")}
    assert set(torchrun_options.NO_EFFECT) == without_effect
    assert {name: takes for name, (takes, _) in torchrun_options.REFUSED.items()} == refused


@pytest.mark.parametrize(
    ("word", "known"),
    [
        ("--nproc_per_node", ("nproc-per-node", True)),
        ("--redirect", ("redirects", True)),
        ("-t", ("tee", True)),
        ("-t3", ("tee", False)),
        ("-m", ("module", False)),
        ("--rdzv", None),  # ambiguous
        ("--inprocess-restart", None),
    ],
)
def test_options_of_torchrun_are_known_like_argparse_knows_them(word, known):
    assert torchrun_options.known(word, hyperpod=False) == known


def test_hyperpodrun_has_options_of_its_own():
    assert torchrun_options.known("--inprocess-restart", hyperpod=True) == ("inprocess-restart", False)
    assert torchrun_options.known("--pre-train-s", hyperpod=True) == ("pre-train-script", True)


def test_what_accelerate_passes_on_is_known():
    assert accelerate_options.known("--use_fsdp") == ("use-fsdp", False)
    assert accelerate_options.known("--num-processes") == ("num-processes", True)
    assert accelerate_options.known("-m") == ("module", False)
    assert set(torchrun_options.KEPT) | set(torchrun_options.NO_EFFECT) >= accelerate_options.AS_TORCHRUN
