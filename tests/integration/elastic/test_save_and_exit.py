"""Scripts without a recoverable function in an elastic job: `keepstep.elastic_event_detected`."""

import itertools
import subprocess

import pytest

from elastic_jobs import Elastic
from harness import JOBS, PYTHON, json_lines
from several_nodes import assert_nothing_is_left


class SaveAndExit(Elastic):
    def __init__(self, folder, *job, **options):
        super().__init__(folder, *job, script="save_and_exit.py", **options)

    def notes(self, key):
        return [note for path in sorted(self.folder.glob("*.jsonl")) for note in json_lines(path) if key in note]

    def wait_for_ranks(self, world, rounds=1):
        """Until so many ranks make steps, for the so-maniest time."""

        def there():
            begun = [note for note in self.notes("begins") if note["world"] == world]
            stepped = {note["rank"] for note in self.notes("step") if note["world"] == world}
            return len(begun) >= world * rounds and len(stepped) == world

        self.first.wait_for(there, f"step of {world} ranks")

    def end(self):
        (self.folder / "enough").touch()
        codes = set()
        for node in self.launchers.values():
            node.process.wait(60)
            codes.add(node.process.returncode)
        return codes

    def lives(self):
        """Each start of all ranks: (world, first step, the step after which they left for a change, or None)."""
        # None begins before all of the life before have left.
        begun = sorted(self.notes("begins"), key=lambda note: note["at"])
        lives = []
        left = self.notes("leaves")
        while begun:
            world = begun[0]["world"]
            notes, begun = begun[:world], begun[world:]
            (world,) = {note["world"] for note in notes}
            (begin,) = {note["begins"] for note in notes}
            assert sorted(note["rank"] for note in notes) == list(range(world)), notes
            ends = {note["leaves"] for note in left if note["world"] == world and note["leaves"] >= begin}
            lives.append((world, begin, min(ends, default=None)))
        return lives


@pytest.mark.parametrize("backend", ["gloo", pytest.param("keepstep", marks=pytest.mark.long)])
def test_all_ranks_leave_after_the_same_step_and_begin_again_in_the_new_world(tmp_path, backend):
    with SaveAndExit(tmp_path / "job", "--backend", backend) as job:
        job.start(0)
        job.wait_for_ranks(2)
        job.start(1)
        job.wait_for_ranks(4)
        job.scale(1)
        job.wait_for_ranks(1)
        job.scale(2)
        job.wait_for_ranks(2, rounds=2)
        assert job.end() == {0}, job.first.output()
        lives = job.lives()
        worlds = [world for world, _, _ in lives]
        assert worlds in ([2, 4, 1, 2], [2, 3, 4, 1, 2]), lives  # one of the two may have been ready before the other
        for (_, _, left), (_, begin, _) in itertools.pairwise(lives):
            assert left == begin, lives
        # Nothing was done twice, and nothing left out.
        steps = [note["step"] for note in job.notes("step") if note["rank"] == 0]
        assert sorted(steps) == list(range(1, len(steps) + 1))
        assert len(job.notes("ends")) == 2
        assert {note["restarts"] for note in job.notes("begins")} == {0}, "a change of size is no restart"
        resized = [(line["from"], line["to"]) for line in job.events("resized")]
        assert resized == list(itertools.pairwise(worlds)), resized
        assert not job.events("fault_detected"), job.first.output()
    assert_nothing_is_left(str(tmp_path))


@pytest.mark.long
def test_without_a_process_group_each_rank_is_told_by_its_own_launcher(tmp_path):
    with SaveAndExit(tmp_path / "job", "--backend", "none") as job:
        job.start(0)
        job.wait_for_ranks(2)
        job.scale(1)
        job.wait_for_ranks(1)
        assert job.end() == {0}, job.first.output()
        assert [world for world, _, _ in job.lives()] == [2, 1]


def test_a_node_that_is_told_to_leave_is_gone_after_the_script_saved(tmp_path):
    with SaveAndExit(tmp_path / "job") as job:
        job.start(0, 1)
        job.wait_for_ranks(4)
        left = job.leave(1)
        assert left.process.returncode == 0, left.output()
        job.wait_for_ranks(2)
        assert job.end() == {0}, job.first.output()
        lives = job.lives()
        assert [world for world, _, _ in lives] == [4, 2] and lives[0][2] == lives[1][1], lives
        assert not job.events("fault_detected"), job.first.output()


def test_a_script_that_never_asks_ends_its_job_as_ever(tmp_path):
    with SaveAndExit(tmp_path / "job", "--deaf") as job:
        job.start(0)
        job.wait_for_ranks(2)
        job.scale(1)
        job.first.wait_for(lambda: job.events("resize_planned"), "resize_planned")
        assert job.end() == {0}, job.first.output()
        assert [world for world, _, _ in job.lives()] == [2]


@pytest.mark.long
def test_a_rank_that_fails_on_its_way_out_is_a_fault_and_all_begin_again(tmp_path):
    with SaveAndExit(tmp_path / "job", "--exit-code", 3, options=["--max-restarts", 1]) as job:
        job.start(0)
        job.wait_for_ranks(2)
        job.scale(1)
        job.wait_for_ranks(1)
        assert job.end() == {0}, job.first.output()
        assert any("exited with code 3" in line["because"] for line in job.events("fault_detected"))
        assert {note["restarts"] for note in job.notes("begins")} == {0, 1}


@pytest.mark.long
def test_in_a_recoverable_loop_it_says_that_the_world_changes_after_this_step(tmp_path):
    with Elastic(tmp_path / "job", "--until", 100000, "--sleep", 0.03, script="scaled.py") as job:
        job.start(0)
        job.wait_for_world(2)
        job.scale(1)
        job.wait_for_world(1)
        done = job.stop()
    told = [line["changes"] for line in done.metrics]
    last_of_two = max(line["step"] for line in done.metrics if line["world"] == 2)
    assert [step for step, changes in enumerate(told, 1) if changes] == [last_of_two]


def test_outside_of_keepstep_it_is_false():
    code = "import keepstep; raise SystemExit(keepstep.elastic_event_detected())"
    assert subprocess.run([PYTHON, "-c", code], cwd=JOBS, check=False).returncode == 0
