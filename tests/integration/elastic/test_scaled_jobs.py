"""Batches, weights and learning rates that follow from the number of ranks, with real jobs."""

import json

import pytest

import keepstep
from elastic_jobs import Elastic, samples_of
from harness import JOBS, finish, start
from several_nodes import assert_nothing_is_left

BASE_LR = 1e-2


def run_job(folder, *extra, world=3, until=6, spares=0, inject=(), options=()):
    injected = [part for text in inject for part in ("--inject", text)]
    process, command = start(
        folder, JOBS / "scaled.py", "--out", folder, "--until", until, *extra,
        world=world, spares=spares, options=[*injected, *options],
    )  # fmt: skip
    return finish(folder, process, command)


def finished(job, until=6):
    assert job.exit_code == 0, job.explain()
    assert [line["step"] for line in job.metrics] == list(range(1, until + 1)), job.explain()
    return job


def assert_close(job, reference):
    for mine, theirs in zip(job.metrics, reference.metrics, strict=True):
        for key in ("loss", "norm"):
            assert mine[key] == pytest.approx(theirs[key], rel=1e-11), f"step {mine['step']}: {key}{job.explain()}"
    for rank in job.finals():
        assert job.finals()[rank]["final"] == pytest.approx(reference.finals()[0]["final"], rel=1e-9)


# ---- uneven splits ----


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The job on one rank, by its options; each is run once."""
    known = {}

    def get(*extra):
        if extra not in known:
            known[extra] = finished(run_job(tmp_path_factory.mktemp("alone"), *extra, world=1))
        return known[extra]

    return get


@pytest.mark.long
@pytest.mark.parametrize("tokens", [(), ("--tokens",)], ids=["samples", "tokens"])
def test_three_ranks_with_sixteen_micro_batches_weigh_them_as_one_rank_does(tmp_path, alone, tokens):
    job = finished(run_job(tmp_path, *tokens))
    shares = {line["rank"]: len(line["ids"]) for line in job.notes if "ids" in line}
    assert shares == {0: 12, 1: 10, 2: 10}
    assert samples_of(job) == samples_of(alone(*tokens))
    assert_close(job, alone(*tokens))


@pytest.mark.parametrize("tokens", [pytest.param((), marks=pytest.mark.long), ("--tokens",)], ids=["samples", "tokens"])
def test_in_reproducible_mode_they_give_the_same_bits(tmp_path, tokens):
    alone = finished(run_job(tmp_path / "one", "--reproducible", *tokens, world=1))
    job = finished(run_job(tmp_path / "three", "--reproducible", *tokens))
    for mine, theirs in zip(job.metrics, alone.metrics, strict=True):
        assert (mine["bits"], mine["norm"]) == (theirs["bits"], theirs["norm"]), job.explain()
    assert {tuple(note["final"]) for note in job.finals().values()} == {tuple(alone.finals()[0]["final"])}


@pytest.mark.long
def test_tokens_weigh_differently_from_samples_or_these_tests_prove_nothing(alone):
    assert alone().metrics[0]["norm"] != pytest.approx(alone("--tokens").metrics[0]["norm"], rel=1e-3)


@pytest.mark.long
def test_a_killed_rank_does_not_change_the_weights(tmp_path, alone):
    inject = ["kill:rank=1,step=2,phase=backward", "kill:rank=2,step=4,phase=allreduce"]
    assert_close(finished(run_job(tmp_path, "--tokens", spares=1, inject=inject)), alone("--tokens"))


# ---- more ranks than micro-batches ----


def test_a_job_that_cannot_shrink_says_what_to_do(tmp_path):
    config = json.dumps({"default": {"global_batch": 4, "micro_batch": 2}})
    job = run_job(tmp_path, "--config", config)
    assert job.exit_code == 1, job.explain()
    assert "2 micro-batches (global_batch=4 / micro_batch=2) cannot feed 3 ranks" in job.output
    assert "at most 2 ranks (--nproc-per-node, --nnodes; with --min-replicas" in job.output


ELASTIC = ["--ranks-per-replica", 1, "--min-replicas", 1]


def test_an_elastic_job_that_starts_with_too_many_goes_on_with_those_that_are_fed(tmp_path):
    config = json.dumps({"default": {"global_batch": 4, "micro_batch": 2}})
    job = finished(run_job(tmp_path, "--config", config, world=4, options=ELASTIC))
    assert {line["world"] for line in job.metrics} == {2}, job.explain()
    assert samples_of(job) == [list(range(4 * n, 4 * n + 4)) for n in range(6)]
    (planned,) = job.events("resize_planned")
    assert (planned["from"], planned["to"]) == (4, 2) and "feed no more than 2 ranks" in planned["because"]
    assert not job.events("fault_detected"), job.explain()


@pytest.mark.long
def test_across_nodes_too_and_a_node_that_is_not_needed_may_leave(tmp_path):
    config = json.dumps({"default": {"global_batch": 4, "micro_batch": 2}})
    with Elastic(
        tmp_path / "job", "--until", 100000, "--sleep", 0.03, "--config", config, nodes="2:2", script="scaled.py"
    ) as job:
        job.start(0, 1)
        job.wait_for_world(2)
        left = job.leave(1)
        assert left.process.returncode == 0, left.output()
        done = job.stop()
    assert {line["world"] for line in done.metrics} == {2}
    assert not done.events("fault_detected"), done.explain()
    assert_nothing_is_left(str(tmp_path))


@pytest.mark.long
def test_where_the_policy_forbids_that_the_job_ends_with_both_limits(tmp_path):
    config = json.dumps({"default": {"global_batch": 4, "micro_batch": 2}})
    options = ["--ranks-per-replica", 1, "--min-replicas", 3]
    job = run_job(tmp_path, "--config", config, world=4, options=options)
    assert job.exit_code == 1, job.explain()
    assert "feed no more than 2 ranks" in job.output and "may not have fewer than 3" in job.output, job.explain()


# ---- a batch that changes with the world ----

# 2 samples for each rank but one, then more.
CHANGING = {"default": {"global_batch": 12, "micro_batch": 2}, 1: {"global_batch": 6}, "4-": {"global_batch": 24}}
CHANGING_OPTIONS = ["--config", json.dumps(CHANGING), "--rule", "linear", "--base-batch", 12]
WANTED = keepstep.scale_config(CHANGING).value("global_batch")


def assert_every_sample_once_in_its_order(job):
    position = 0
    for used, line in zip(samples_of(job), job.metrics, strict=True):
        assert line["batch"] == WANTED(line["world"]), job.explain()
        assert used == list(range(position, position + line["batch"])), f"step {line['step']}{job.explain()}"
        position += line["batch"]
        assert line["position"] == position, job.explain()


def assert_rates_follow_the_rule(job):
    for line in job.metrics:
        if not line["vetoed"]:
            # The schedule divides by the number of updates, this one included.
            expected = keepstep.scaled_lr(BASE_LR, 12, line["batch"], "linear") / line["updates"]
            assert line["rates"] == [pytest.approx(expected, rel=1e-12)], f"step {line['step']}{job.explain()}"


def long(*values):
    return pytest.param(*values, marks=pytest.mark.long)


@pytest.mark.parametrize(
    "phases, communicates",
    [
        (("after_vote", "update"), ()),
        long(("backward", "before_vote"), ("--communicates",)),
        *(long((phase, phase), ()) for phase in ("backward", "before_vote", "after_vote", "update")),
        *(long((phase, phase), ("--communicates",)) for phase in ("backward", "before_vote")),
    ],
    ids=str,
)
def test_a_position_of_its_own_takes_every_sample_once_whatever_dies_when(tmp_path, phases, communicates):
    inject = [f"kill:rank=1,step=2,phase={phases[0]}", f"kill:rank=0,step=4,phase={phases[1]}"]
    extra = [*CHANGING_OPTIONS, "--veto-at", 3, *communicates]
    job = finished(run_job(tmp_path, *extra, spares=1, inject=inject))
    assert_every_sample_once_in_its_order(job)
    assert_rates_follow_the_rule(job)
    assert [line["vetoed"] for line in job.metrics] == [step == 3 for step in range(1, 7)]
    assert {note["position"] for note in job.finals().values()} == {72}
    assert len(job.events("injected")) == 2, job.explain()


def test_batches_and_rates_follow_the_world_as_it_changes(tmp_path):
    with Elastic(
        tmp_path / "elastic", "--until", 100000, "--sleep", 0.03, *CHANGING_OPTIONS, script="scaled.py"
    ) as job:
        job.start(0, 1)
        job.wait_for_world(4)
        job.scale(1)
        job.wait_for_world(1)
        job.scale(3)
        job.wait_for_world(3)
        job.kill_rank(2)
        job.scale("auto")
        job.wait_for_world(4)
        left = job.leave(1)
        assert left.process.returncode == 0, left.output()
        job.wait_for_world(2)
        done = job.stop()
    assert_every_sample_once_in_its_order(done)
    assert_rates_follow_the_rule(done)
    assert {line["batch"] for line in done.metrics} == {6, 12, 24}
    assert_nothing_is_left(str(tmp_path))


def test_a_batch_that_changes_without_a_position_is_refused(tmp_path):
    job = run_job(tmp_path, *CHANGING_OPTIONS, "--no-position")
    assert job.exit_code == 1 and "give position=, a field of the State" in job.output, job.explain()


def test_micro_batches_that_change_are_refused_where_the_bits_must_not(tmp_path):
    job = run_job(tmp_path, *CHANGING_OPTIONS, "--reproducible")
    assert job.exit_code == 1 and "in reproducible mode the bits follow from the micro-batches" in job.output
