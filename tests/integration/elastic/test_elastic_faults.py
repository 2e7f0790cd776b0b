"""Elastic jobs when things go wrong: ranks and nodes die while the world changes, come too late, or do not fit."""

import os
import shutil
import signal
import struct

import pytest

from elastic_jobs import NOTICE, Elastic, samples_of
from harness import JOBS, finish, start
from several_nodes import assert_nothing_is_left, kill, node_lines

ENDLESS = ["--until", 1_000_000, "--sleep", 0.02, "--note-ids"]


@pytest.fixture(scope="session")
def fixed(tmp_path_factory):
    """The first steps of the same job with two ranks on one node, which nothing disturbs."""
    known = {}

    def get(steps, script="reproducible.py", extra=()):
        key = (script, tuple(extra))
        if key not in known or len(known[key].metrics) < steps:
            folder = tmp_path_factory.mktemp("fixed")
            until = steps if extra else max(150, steps * 3 // 2)  # many tests ask for the one without options
            process, command = start(
                folder, JOBS / script, "--out", folder, "--note-ids", "--until", until, *extra, world=2
            )
            known[key] = finish(folder, process, command, limit_s=300)
            assert known[key].exit_code == 0, known[key].explain()
        return known[key]

    return get


@pytest.fixture
def elastic(tmp_path):
    jobs = []

    def begin(*job, **how):
        jobs.append(Elastic(tmp_path / f"elastic{len(jobs) or ''}", *ENDLESS, *job, **how))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.__exit__()
    assert_nothing_is_left(str(tmp_path))


def assert_same_bits(done, fixed):
    reference = fixed(len(done.metrics))
    assert samples_of(done) == samples_of(reference)[: len(done.metrics)], done.explain()
    for mine, theirs in zip(done.metrics, reference.metrics, strict=False):
        assert (mine["bits"], mine["norm"]) == (theirs["bits"], theirs["norm"]), f"step {mine['step']}{done.explain()}"
        assert mine["loss"] == theirs["loss"], f"step {mine['step']}: node 0's file has {mine.get('loss')}"
    # After a change as before, what the ranks hold is compared.
    assert not done.events("not_compared"), done.explain()


def entries(done, rank=None):
    """[(process, entry)], in the order of generations."""
    found = [note for note in done.notes if "entry" in note and rank in (None, note["rank"])]
    return [(note["pid"], note["entry"]) for note in sorted(found, key=lambda note: note["generation"])]


# ---- a rank dies while the world changes --------------------------------------------------------------------------

POINTS = ["resize_planned", "sealed", "resized", "generation_prepared", "rank_ready", "activated"]


def change_with_a_death(job, before, to, point, rank):
    """The world goes from `before` to `to`; when `point` is reached, who had `rank`, or is to have it, is killed."""
    mark = job.mark()
    victim = job.pid_of(rank) if rank < before else None
    asking = job.ask_for(to)
    if victim is None:
        # The world may grow by several changes, as newcomers are ready.
        grown = job.wait_for_event("generation_prepared", mark, where=lambda line: line["ranks"] > rank)
        job.wait_for_event(point, mark, generation=grown["generation"])
    else:
        job.wait_for_event(point, mark)
    os.kill(victim or job.pid_of(rank), signal.SIGKILL)
    assert asking.wait(60) == 0, asking.stderr.read()
    job.wait_for_event("formed", mark)
    job.wait_for_world(to)


@pytest.mark.parametrize(
    ("points", "down", "up"),
    [
        (POINTS[1::2], 1, 1),
        *(pytest.param(POINTS, *ranks, marks=pytest.mark.long) for ranks in ((1, 1), (0, 0), (3, 3), (2, 2))),
    ],
)
def test_a_rank_that_dies_at_any_point_of_a_resize_loses_nothing(elastic, fixed, points, down, up):
    job = elastic()
    job.start(0, 1)
    job.wait_for_world(4)
    for point in points:
        change_with_a_death(job, 4, 2, point, down)
        change_with_a_death(
            job, 2, 4, point, up if point in ("generation_prepared", "rank_ready", "activated") else up % 2
        )
    done = job.stop()
    assert_same_bits(done, fixed)
    assert not done.events("restart"), done.explain()


@pytest.mark.long
def test_a_newcomer_that_dies_while_it_takes_the_state_is_replaced(elastic, fixed):
    """The fault waits for the first newcomer that hydrates: rank 2, at the first growth."""
    job = elastic(options=["--inject", "kill:rank=2,step=2,phase=hydrate"])
    job.start(0)
    job.wait_for_world(2)
    job.start(1)
    job.wait_for_event("fault_detected", rank=2)
    job.wait_for_world(4)
    done = job.stop()
    (injected,) = [line for line in node_lines(done.folder, "journal", 1) if line["event"] == "injected"]
    assert injected["rank"] == 2, injected
    assert_same_bits(done, fixed)
    assert len({pid for pid, _ in entries(done, 0)}) == 1 and len({pid for pid, _ in entries(done, 1)}) == 1


@pytest.mark.long
def test_a_resize_is_asked_for_while_a_rank_is_replaced(elastic, fixed):
    job = elastic()
    job.start(0, 1)
    job.wait_for_world(4)
    for point, ranks in (("fault_detected", (1, 0)), ("verdict", (3, 1)), ("generation_prepared", (0, 1))):
        for to, rank in zip((2, 4), ranks, strict=True):
            mark = job.mark()
            job.kill_rank(rank)
            job.wait_for_event(point, mark)
            job.scale(to)
            job.wait_for_world(to)
    done = job.stop()
    assert_same_bits(done, fixed)
    assert not done.events("restart"), done.explain()


# ---- nodes leave --------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("point", ["node_leaves", "resize_planned", "activated", "resized"])
def test_a_node_that_is_killed_while_it_leaves_is_an_ordinary_loss(elastic, fixed, point):
    job = elastic()
    job.start(0, 1)
    job.wait_for_world(4)
    mark = job.mark()
    node = job.tell_to_leave(1)
    job.wait_for_event(point, mark)
    kill(node)
    job.wait_for_world(2)
    job.start(1)  # its place is free
    job.wait_for_world(4)
    assert_same_bits(job.stop(), fixed)


def test_a_drain_with_too_little_time_is_an_ordinary_fault(elastic, fixed):
    job = elastic("--sleep", 1, options=["--graceful-shutdown-timeout", "0.05"])
    job.start(0, 1)
    job.wait_for_world(4)
    done = len(job.steps())
    job.first.wait_for(lambda: len(job.steps()) > done, "commit")  # the next one is a second away
    mark = job.mark()
    left = job.leave(1)
    assert left.process.returncode == 1, left.output()
    assert "ends now, at the end of its time" in left.output(), left.output()
    job.wait_for_event("fault_detected", mark, lost_node=1)
    job.wait_for_world(2)
    done = job.stop()
    assert_same_bits(done, fixed)
    assert len({pid for pid, _ in entries(done, 0)}) == 1


@pytest.mark.long
def test_a_time_to_leave_that_is_set_and_set_back_holds_on_all_nodes(elastic):
    job = elastic("--sleep", 0.7, options=["--graceful-shutdown-timeout", "40"])
    job.start(0, 1, 2)
    job.wait_for_world(6)
    mark = job.mark()
    for seconds in ("0.05", "40"):
        job.set_policy(f"gracefulShutdownTimeoutInSeconds={seconds}")
    for node in (1, 2):
        left = job.leave(node)
        assert left.process.returncode == 0, left.output()
        assert "it leaves within 40 s" in left.output(), left.output()
        job.wait_for_event("node_left", mark, left_node=node)
    job.stop()


@pytest.mark.long
def test_a_leave_that_would_break_the_smallest_size_waits_for_a_newcomer(elastic, fixed):
    job = elastic(options=["--min-replicas", "3"], nodes="2:4")
    job.start(0, 1)
    job.wait_for_world(4)
    mark = job.mark()
    node = job.tell_to_leave(1)
    kept = job.wait_for_event("size_kept", mark)
    assert "leaving ranks stay until newcomers are ready, or until their deadline" in kept["because"], kept
    job.wait_for_more_steps(5)
    assert node.process.poll() is None, node.output()
    assert job.steps()[-1]["world"] == 4
    job.start(2)
    assert node.process.wait(60) == 0, node.output()
    job.wait_for_more_steps(2)  # the newest published may be older than the change
    job.wait_for_world(4)
    done = job.stop()
    assert_same_bits(done, fixed)
    # It moved without a fault.
    assert not done.events("fault_detected"), done.explain()
    changes = [(line["from"], line["to"]) for line in done.events("resized")]
    # The newcomer's processes need not be ready at the same moment.
    assert changes in ([(4, 4)], [(4, 3), (3, 4)]), done.explain()


@pytest.mark.long
def test_a_leave_that_breaks_the_smallest_size_at_its_deadline_halts_the_job_until_a_node_joins(elastic, fixed):
    job = elastic(options=["--min-replicas", "3", "--graceful-shutdown-timeout", "1"], nodes="2:4")
    job.start(0, 1)
    job.wait_for_world(4)
    mark = job.mark()
    left = job.leave(1)
    assert left.process.returncode == 1, left.output()
    job.wait_for_event("fault_detected", mark, lost_node=1)
    waits = job.wait_for_event("size_kept", mark, missing=2)
    steps = len(job.steps())
    job.start(2)
    job.wait_for_event("node_joined", mark)
    assert len(job.steps()) <= steps + 1, "it ran on with fewer than the smallest size"
    job.wait_for_more_steps(3)
    done = job.stop()
    assert_same_bits(done, fixed)
    assert {line["world"] for line in done.metrics} == {4}, waits


@pytest.mark.long
def test_a_job_below_its_smallest_size_ends_when_no_node_comes(elastic):
    job = elastic(options=["--min-replicas", "3", "--graceful-shutdown-timeout", "0.5"], nodes="2:4")
    job.start(0, 1)
    job.wait_for_world(4)
    assert job.leave(1).process.returncode == 1
    assert job.first.process.wait(120) == 1
    assert "no other node came within 60.5 s to take its ranks" in job.first.output(), job.first.output()


@pytest.mark.long
def test_a_second_sigterm_ends_the_leaving_launcher_at_once_and_only_it(elastic, fixed):
    job = elastic(options=["--min-replicas", "3"], nodes="2:4")  # so it cannot leave
    job.start(0, 1)
    job.wait_for_world(4)
    mark = job.mark()
    node = job.tell_to_leave(1)
    job.wait_for_event("size_kept", mark)
    node.process.send_signal(signal.SIGTERM)
    assert node.process.wait(20) == 1, node.output()
    job.wait_for_event("fault_detected", mark, lost_node=1)
    job.start(2)
    job.wait_for_more_steps(3)
    assert_same_bits(job.stop(), fixed)


def test_ctrl_c_on_node_0_ends_all_also_those_that_leave_or_join(elastic):
    job = elastic(options=["--min-replicas", "3"], nodes="2:4")
    job.start(0, 1)
    job.wait_for_world(4)
    mark = job.mark()
    leaving = job.tell_to_leave(1)
    job.wait_for_event("size_kept", mark)
    job.start(2, variables={"KEEPSTEP_TEST_GATE": str(job.folder / "never")})
    job.wait_for_event("node_joined", mark)
    os.kill(job.first.process.pid, signal.SIGINT)
    for node in (job.first, leaving, job.launchers[2]):
        assert node.process.wait(30) == 130, node.output()


# ---- nodes join ---------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_node_that_vanishes_while_its_workers_start_is_not_missed(elastic, fixed):
    job = elastic()
    job.start(0)
    job.wait_for_world(2)
    mark = job.mark()
    job.start(1)
    job.wait_for_event("node_joined", mark)
    job.lose(1)
    job.wait_for_event("fault_detected", mark, lost_node=1)
    job.wait_for_more_steps(5)
    assert not job.events("rung") and not job.events("resize_planned")
    job.start(1)
    job.wait_for_world(4)
    done = job.stop()
    assert_same_bits(done, fixed)
    assert not done.events("rung"), done.explain()


@pytest.mark.long
def test_a_newcomer_that_dawdles_holds_nobody_up_and_is_used_later(elastic, fixed):
    job = elastic()
    gate = job.folder / "gate"
    job.start(0)
    job.wait_for_world(2)
    mark = job.mark()
    job.start(1, 2, variables={"KEEPSTEP_TEST_GATE": str(gate)})
    for node in (1, 2):
        job.wait_for_event("node_joined", mark, joined_node=node)
    job.wait_for_more_steps(50)
    assert {line["world"] for line in job.steps()} == {2}
    assert not job.events("resize_planned")
    left = job.leave(2)  # it never had a rank
    assert left.process.returncode == 0, left.output()
    job.wait_for_event("node_left", mark, left_node=2)
    gate.touch()
    job.wait_for_world(4)
    done = job.stop()
    assert_same_bits(done, fixed)
    assert not done.events("fault_detected"), done.explain()


OTHER_TORCH = """
import importlib.machinery
import sys


class OtherVersion:
    def find_spec(self, name, path=None, target=None):
        if name != "torch.version":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            module.__version__ = "2.99.1+cpu"

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, OtherVersion())
"""


def with_another_script(job, tmp_path):
    other = tmp_path / "elsewhere" / "jobs" / "reproducible.py"
    shutil.copytree(JOBS, other.parent)
    other.write_text((JOBS / "reproducible.py").read_text() + "\n# newer\n")
    job.start(1, job=[other, *job.job[1:]])
    return "the script is 'reproducible.py with checksum"


def with_another_torch(job, tmp_path):
    folder = tmp_path / "other-torch"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(OTHER_TORCH)
    job.start(1, variables={"PYTHONPATH": str(folder)})
    return "torch is '2.99.1+cpu' on node 1"


@pytest.mark.long
@pytest.mark.parametrize("unlike", [with_another_torch, with_another_script])
def test_a_node_that_does_not_fit_is_refused_with_which_and_why_and_the_job_goes_on(elastic, fixed, tmp_path, unlike):
    # Long enough that the node is compared before it is used.
    job = elastic(options=["--scaling-timeout", "2"])
    job.start(0)
    job.wait_for_world(2)
    because = unlike(job, tmp_path)
    refused = job.launchers.pop(1)
    job.ended.append(refused)
    assert refused.process.wait(60) == 1, refused.output()
    assert because in refused.output(), refused.output()
    assert "The job goes on without this node" in refused.output()
    job.wait_for_more_steps(5)
    job.start(1)
    job.wait_for_world(4)
    done = job.stop()
    (line,) = done.events("node_refused")
    assert line["refused_node"] == 1 and because in line["because"], line
    assert_same_bits(done, fixed)
    assert not done.events("rung"), done.explain()


# ---- what scripts see ---------------------------------------------------------------------------------------------


def test_survivors_are_told_of_each_change_and_newcomers_that_they_joined(elastic):
    job = elastic()
    job.start(0)
    job.wait_for_world(2)
    job.start(1)
    job.wait_for_world(4)
    job.scale(1)
    job.wait_for_world(1)
    job.scale(4)
    job.wait_for_world(4)
    done = job.stop()
    (survivor,) = {pid for pid, _ in entries(done, 0)}
    told = [note["resized"] for note in done.notes if "resized" in note and note["pid"] == survivor]
    growth = told[:-2]  # one of the two newcomers may have been ready before the other
    assert growth in ([[2, 4]], [[2, 3], [3, 4]]) and told[-2:] == [[4, 1], [1, 4]], done.explain()
    resizes = ["resize"] * len(growth)
    assert [entry for _, entry in entries(done, 0)] == ["start", *resizes, "resize", "resize"], done.explain()
    assert [entry for _, entry in entries(done, 3)] == ["joined", "joined"], done.explain()
    assert [entry for _, entry in entries(done, 1)] == ["start", *resizes, "joined"], done.explain()


@pytest.mark.long
def test_a_notice_in_the_middle_of_a_resize_stops_the_job_after_a_step(elastic, fixed):
    job = elastic()
    job.start(0, 1)
    job.wait_for_world(4)
    mark = job.mark()
    asking = job.ask_for(2)
    job.wait_for_event("resize_planned", mark)
    done = job.stop()
    asking.communicate(timeout=60)
    assert done.exit_code == NOTICE
    assert_same_bits(done, fixed)


# ---- a rank hangs while the others pause ----------------------------------------------------------------------------


@pytest.mark.long
def test_a_rank_that_hangs_where_all_pause_is_found_like_any_other(elastic, fixed):
    job = elastic("--hang-at-change", 1)
    job.start(0, 1)
    job.wait_for_world(4)
    job.wait_for_more_steps(10)  # of which the detector learns
    mark = job.mark()
    asking = job.ask_for(2)
    noticed = job.wait_for_event("fault_detected", mark, kind="hang")
    assert noticed["rank"] == 1 and "because the world changes" in noticed["because"], noticed
    assert asking.wait(60) == 0, asking.stderr.read()
    job.wait_for_world(2)
    assert_same_bits(job.stop(), fixed)


# ---- other models -------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_ddp_stays_within_rounding_of_a_fixed_size(elastic, fixed):
    ddp = ["--wrapper", "ddp", "--dropout", 0]
    job = elastic(*ddp)
    job.start(0, 1)
    job.wait_for_world(4)
    job.scale(2)
    job.wait_for_world(2)
    job.scale(3)
    job.wait_for_world(3)
    job.kill_rank(2)
    job.scale(1)
    job.wait_for_world(1)
    job.scale(4)
    job.wait_for_world(4)
    done = job.stop()
    reference = fixed(len(done.metrics), extra=ddp)
    assert samples_of(done) == samples_of(reference)[: len(done.metrics)], done.explain()
    for mine, theirs in zip(done.metrics, reference.metrics, strict=False):
        assert struct.pack("<d", mine["loss"]).hex() == mine["bits"], f"step {mine['step']}"
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-5), f"step {mine['step']}"
    assert len({pid for pid, _ in entries(done, 0)}) == 1, "rank 0 was never disturbed"


@pytest.mark.long
def test_a_model_with_batch_norm_runs_on_through_all_sizes(elastic):
    job = elastic("--model", "rich", script="small.py")
    job.start(0)
    job.wait_for_world(2)
    job.start(1)
    job.wait_for_world(4)
    job.scale(1)
    job.wait_for_world(1)
    job.scale(4)
    job.wait_for_world(4)
    job.lose(1)
    job.wait_for_world(2)
    done = job.stop()
    for number, used in enumerate(samples_of(done), 1):
        assert len(used) == 16 == len(set(used)), f"step {number}: {used}"
    assert not done.events("restart") and all(entry != "start" for _, entry in entries(done, 3)), done.explain()
    assert all(line["loss"] < 1e9 for line in done.metrics), done.explain()
