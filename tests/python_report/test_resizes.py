"""The one definition of a pause that all tools are measured by, and where the journal says that ours went."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from keepstep.bench.elastic.resizes import Resize, Worlds, add_phases, resizes, steps_per_s, summary
from keepstep.bench.harness.commits import CommitReader, RankCommit


def world(generation: int, ranks: int, steps: range, begin: float, step_s: float) -> list[RankCommit]:
    """Commits of a generation; rank r is 10 ms * r behind rank 0."""
    return [
        RankCommit(
            pid=100 + rank,
            step=step,
            rank=rank,
            generation=generation,
            ranks=ranks,
            mono=begin + number * step_s + rank * 0.01,
        )
        for number, step in enumerate(steps)
        for rank in range(ranks)
    ]


def test_a_pause_is_the_gap_between_two_worlds_less_a_step_of_the_new_one() -> None:
    commits = [*world(1, 2, range(1, 6), 10.0, 0.5), *world(2, 4, range(6, 12), 13.0, 0.4)]
    (found,) = resizes(commits)
    assert (found.before, found.after, found.redone_steps) == (2, 4, 0)
    assert found.before_mono == pytest.approx(12.01)  # the last rank had step 5
    assert found.after_mono == pytest.approx(13.03)
    assert found.pause_s == pytest.approx(1.02 - 0.4)


def test_the_step_is_that_of_the_world_which_the_change_led_to() -> None:
    commits = [*world(1, 2, range(1, 6), 10.0, 0.5), *world(2, 4, range(6, 12), 13.0, 0.4)]
    commits += [*world(3, 2, range(12, 18), 18.0, 2.0), *world(4, 4, range(18, 24), 32.0, 1.0)]
    assert [found.step_s for found in resizes(commits)] == pytest.approx([0.4, 2.0, 1.0])


def test_a_fault_that_keeps_the_size_is_no_resize() -> None:
    assert resizes([*world(1, 2, range(1, 6), 10.0, 0.5), *world(2, 2, range(6, 12), 20.0, 0.5)]) == []


def test_steps_that_only_some_ranks_had_are_not_the_last_of_a_world() -> None:
    cut = world(1, 4, range(5, 6), 12.0, 0.5)[:3]
    commits = [*world(1, 4, range(1, 5), 10.0, 0.5), *cut, *world(2, 2, range(5, 12), 14.0, 0.4)]
    (found,) = resizes(commits)
    assert found.before_mono == pytest.approx(11.53)
    assert found.redone_steps == 0


def test_steps_that_were_committed_before_and_again_afterwards_are_told() -> None:
    (found,) = resizes([*world(1, 2, range(1, 8), 10.0, 0.5), *world(2, 4, range(5, 12), 20.0, 0.4)])
    assert found.redone_steps == 3


def test_the_rate_of_a_size_leaves_out_how_each_of_its_generations_begins() -> None:
    commits = [*world(1, 2, range(1, 7), 10.0, 0.5), *world(2, 1, range(7, 13), 20.0, 1.0)]
    commits += world(3, 2, range(13, 19), 90.0, 0.25)
    assert steps_per_s(commits, 1) == pytest.approx(1.0)
    assert steps_per_s(commits, 2) == pytest.approx(8 / (4 * 0.5 + 4 * 0.25))
    assert steps_per_s(commits, 3) is None
    assert steps_per_s(world(1, 2, range(1, 3), 10.0, 0.5), 2) is None  # too few to tell


def test_a_world_is_settled_when_its_newest_generation_made_the_steps_with_all_ranks(tmp_path: Path) -> None:
    def write(commits: list[RankCommit]) -> None:
        for commit in commits:
            with (tmp_path / f"{commit.pid}.commits").open("a") as file:
                file.write(f"{commit.step} {commit.rank} {commit.generation} {commit.ranks} {commit.mono}\n")

    worlds = Worlds(CommitReader(tmp_path))
    write(world(1, 2, range(1, 4), 10.0, 0.5))
    assert worlds.settled(2, 3)
    assert not worlds.settled(2, 4)
    write(world(2, 4, range(4, 5), 20.0, 0.5)[:3])
    assert not worlds.settled(4, 1)  # rank 3 is missing
    write(world(2, 4, range(4, 5), 20.0, 0.5)[3:])
    assert worlds.settled(4, 1)
    assert not worlds.settled(2, 3)
    write(world(3, 2, range(5, 7), 30.0, 0.5))
    assert not worlds.settled(2, 3)  # what an earlier generation of that size made does not count
    assert worlds.settled(2, 2)


def journal(*events: tuple[float, str, int]) -> list[dict[str, Any]]:
    return [
        {"mono": mono, "event": event, "generation": generation}
        | ({"committed_mono": mono - 0.001} if event == "first_commit" else {})
        for mono, event, generation in events
    ]


def test_the_phases_of_a_pause_add_up_to_it() -> None:
    resize = Resize(before=2, after=4, before_mono=10.0, after_mono=11.0, redone_steps=0, step_s=0.4, pause_s=0.6)
    lines = journal(
        (9.0, "generation_prepared", 1),
        (9.5, "first_commit", 1),
        (10.1, "resized", 2),
        (10.15, "generation_prepared", 2),
        (10.2, "rank_ready", 2),
        (10.25, "rank_ready", 2),
        (10.26, "activated", 2),
        (10.4, "hydrated", 2),
        (10.45, "hydrated", 2),
        (10.5, "formed", 2),
        (11.0, "first_commit", 2),
        (12.0, "resized", 3),
        (12.0, "generation_prepared", 3),
        (12.1, "rank_ready", 3),
    )
    add_phases([resize], lines)
    assert resize.phases_s == pytest.approx(
        {
            "seal": 0.1,
            "prepare": 0.05,
            "ready": 0.1,
            "activate": 0.01,
            "hydrate": 0.19,
            "form": 0.05,
            "first_step": 0.1,
        }
    )
    assert sum(resize.phases_s.values()) == pytest.approx(resize.pause_s)


def test_a_resize_that_the_journal_does_not_tell_has_no_phases() -> None:
    resize = Resize(before=2, after=4, before_mono=10.0, after_mono=11.0, redone_steps=0, step_s=0.4, pause_s=0.6)
    add_phases([resize], journal((12.0, "resized", 2), (12.1, "generation_prepared", 2), (13.0, "first_commit", 2)))
    assert resize.phases_s == {}


def test_the_summary_tells_both_directions() -> None:
    found = [
        Resize(2, 4, 1.0, 2.0, 0, 0.1, 0.3, phases_s={"hydrate": 0.1}),
        Resize(4, 2, 3.0, 4.0, 2, 0.1, 0.1),
        Resize(2, 4, 5.0, 6.0, 0, 0.1, 0.5, phases_s={"hydrate": 0.3}),
    ]
    result = summary(found)
    assert (result["pause_s"], result["best_s"], result["worst_s"]) == (0.3, 0.1, 0.5)
    assert (result["resizes"], result["redone_steps"]) == (3, 2)
    assert result["grow"]["pause_s"] == pytest.approx(0.4)
    assert result["grow"]["phases"] == pytest.approx({"hydrate": 0.2})
    assert result["shrink"]["pause_s"] == 0.1
    assert "phases" not in result["shrink"]
