"""What draws rounds and what judges leaks; the rounds themselves are `make chaos`."""

from pathlib import Path

import elastic_plan
from elastic_rounds import unexplained
from leaks import MAX_BYTES, Samples
from models import models
from plan import SHAPES, draw

STEPS = 400


def rounds(seed, count=60):
    return [draw(seed, number, models(Path("build")), STEPS) for number in range(count)]


def test_a_round_is_drawn_again_from_its_seed_and_number():
    assert rounds(7) == rounds(7)
    assert rounds(7) != rounds(8)


def test_in_an_hour_everything_comes_about():
    faults = [fault for each in rounds(1, 200) for fault in each.faults]
    kinds = {fault.split(":")[0] for fault in faults}
    assert kinds == {
        "kill", "segv", "exception", "exit", "stop", "gil", "loop", "deadlock", "oom", "slow", "agent-stop",
        "disk-full", "flip", "agent-kill", "link-drop", "link-delay",
    }  # fmt: skip
    assert {each.shape for each in rounds(1, 200)} == set(SHAPES)
    assert any("phase=hydrate" in fault for fault in faults) and any("phase=recovery" in fault for fault in faults)


def test_node_0_is_never_killed():
    for each in rounds(2, 200):
        for fault in each.faults:
            if fault.startswith("agent-kill"):
                assert int(fault.split("rank=")[1].split(",")[0]) >= each.shape.ranks


def samples(values):
    """Of (bytes, descriptors) or (bytes, descriptors, processes); 5 processes where nothing is said."""
    return Samples(taken=[(*value, 5)[:3] for value in values])


def test_what_grows_at_first_and_for_a_moment_is_no_leak():
    steady = [(50 << 20, 40)] * 10
    assert samples([(20 << 20, 10)] * 10 + steady + [(50 << 20, 40), (90 << 20, 90)] * 5).leak() is None


def test_what_grows_for_ever_is_a_leak():
    assert "memory grew" in samples([((10 + i) << 20, 40) for i in range(30)]).leak()
    assert "file descriptors" in samples([(10 << 20, 40 + i) for i in range(30)]).leak()
    assert samples([(10 << 20, 40)] * 10 + [((10 << 20) + MAX_BYTES, 43)] * 20).leak() is None


def test_descriptors_are_compared_where_equally_many_processes_are_there():
    of_one_process_less = [(10 << 20, 34, 4)] * 3
    full = [(10 << 20, 40, 5)]
    assert samples(full * 10 + of_one_process_less + full * 17).leak() is None
    assert "file descriptors" in samples(full * 10 + of_one_process_less + full * 7 + [(10 << 20, 44, 5)] * 10).leak()


def test_a_short_job_says_nothing():
    assert samples([(10 << 20, 40)] * 5).leak() is None


def happenings(seed, number=0):
    return elastic_plan.draw(seed, number, 600)


def test_an_elastic_round_is_drawn_again_from_its_seed_and_number_and_has_everything():
    assert happenings(7) == happenings(7)
    assert happenings(7) != happenings(8) and happenings(7) != happenings(7, 1)
    assert {each.kind for each in happenings(7)} == set(elastic_plan.KINDS)
    assert {each.point for each in happenings(7)} == set(elastic_plan.POINTS)
    assert {each.size for each in happenings(7)} == set(range(elastic_plan.LEAST, 9))
    assert elastic_plan.DEADLY < set(elastic_plan.KINDS)


BEGIN = [{"event": "generation_prepared", "ranks": 4, "because": "the job starts"}]
PLANNED = {"event": "resize_planned", "from": 4, "to": 2, "because": "asked"}
RESIZED = {"event": "resized", "from": 4, "to": 2, "ranks": 2, "because": "asked"}
SMALLER = {"event": "generation_prepared", "ranks": 2, "because": "asked"}


def test_a_change_of_size_is_explained_by_its_plan():
    assert unexplained([*BEGIN, PLANNED, RESIZED, SMALLER]) is None
    assert unexplained([*BEGIN, RESIZED, SMALLER]).startswith("nobody planned")
    assert unexplained([*BEGIN, PLANNED, {**RESIZED, "because": "another"}]).startswith("nobody planned")
    assert unexplained([*BEGIN, PLANNED, {**RESIZED, "to": 3}]).startswith("nobody planned")
    assert unexplained([*BEGIN, PLANNED, {**RESIZED, "ranks": 3}, SMALLER]).startswith("the world went from 4 to 2")
    assert unexplained([*BEGIN, {"event": "fault_detected"}, SMALLER]).startswith("the world went from 4 to 2")


def test_a_generation_is_explained_by_what_led_to_it():
    assert unexplained([*BEGIN, {"event": "fault_detected"}, *BEGIN]) is None
    assert unexplained([*BEGIN, *BEGIN]).startswith("nothing led to")
    assert unexplained([*BEGIN, {"event": "node_left", "left_node": 1}]).startswith("nobody told it to")
    assert unexplained([{**BEGIN[0], "because": ""}]).startswith("without a reason")
