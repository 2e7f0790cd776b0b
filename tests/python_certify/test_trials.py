"""Which faults make sense for a job of some shape; what cannot be tried is said with the reason."""

import dataclasses

import pytest

from keepstep.certify.trials import PHASES, NotTried, Shape, Trial, trials

FOUR = Shape(world=4, nodes=2, spares=1, spare_nodes=1, steps=10, python=True, digests=True)


def tried(shape):
    return {each.name: each for each in trials(shape) if isinstance(each, Trial)}


def left_out(shape):
    return {each.name: each.because for each in trials(shape) if isinstance(each, NotTried)}


def test_with_enough_of_everything_nothing_is_left_out():
    assert left_out(FOUR) == {}
    assert {f"kill-{phase}" for phase in PHASES} <= tried(FOUR).keys()


def test_every_rank_is_a_victim():
    ranks = {fault.split("rank=")[1][0] for trial in tried(FOUR).values() for fault in trial.faults}
    assert ranks == {"0", "1", "2", "3"}


def test_faults_happen_after_the_checked_steps_and_leave_some_to_follow():
    for trial in tried(FOUR).values():
        for fault in trial.faults:
            step = int(fault.split("step=")[1].split(",")[0])
            assert 3 < step < 10


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"nodes": 1}, {"node", "link-drop", "link-delay"}),
        ({"spare_nodes": 0}, {"node"}),
        ({"world": 2}, {"two-at-once", "survivor", "flip-parameter"}),
        ({"digests": False}, {"flip-gradient", "flip-parameter"}),
    ],
)
def test_what_cannot_be_tried_is_named(change, names):
    assert left_out(dataclasses.replace(FOUR, **change)).keys() == names


def test_a_lost_node_is_never_node_0():
    (fault,) = tried(FOUR)["node"].faults
    assert fault.startswith("agent-kill:rank=3")


def test_a_program_without_python_is_only_killed_or_crashed():
    kinds = {
        fault.split(":")[0] for each in tried(dataclasses.replace(FOUR, python=False)).values() for fault in each.faults
    }
    assert kinds == {"kill", "segv", "exception", "exit"}
