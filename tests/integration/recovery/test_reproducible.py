"""Reproducible mode, end to end: the same losses, norms and parameters for every number of ranks, faults included."""

import pytest

from harness import JOBS, assert_survivors_kept_their_process, finish, samples, start

SHORT = 5  # steps
LONG = 100


def run_job(folder, *, world, until=SHORT, spares=0, inject=(), extra=()):
    injected = [part for text in inject for part in ("--inject", text)]
    process, command = start(
        folder, JOBS / "reproducible.py", "--out", folder, "--until", until, *extra,
        world=world, spares=spares, options=injected,
    )  # fmt: skip
    return finish(folder, process, command)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The same job on one rank, undisturbed; each is run once."""
    known = {}

    def get(until=SHORT, extra=()):
        key = (until, tuple(extra))
        if key not in known:
            known[key] = run_job(tmp_path_factory.mktemp("alone"), world=1, until=until, extra=extra)
            assert known[key].exit_code == 0, known[key].explain()
        return known[key]

    return get


def history(job):
    return [(line["step"], line["bits"], line["loss"], line["norm"]) for line in job.metrics]


def assert_same_bits(job, reference, until):
    why = job.explain()
    assert job.exit_code == 0, why
    assert [line["step"] for line in job.metrics] == list(range(1, until + 1)), why
    assert history(job) == history(reference), why
    assert samples(job) == samples(reference), why
    finals = {note["final"] for note in job.finals().values()}
    assert finals == {reference.finals()[0]["final"]}, why


@pytest.mark.parametrize("world", [*(pytest.param(w, marks=pytest.mark.long) for w in (2, 3)), 4])
def test_losses_norms_and_parameters_do_not_depend_on_the_number_of_ranks(tmp_path, alone, world):
    assert_same_bits(run_job(tmp_path, world=world), alone(), SHORT)


@pytest.mark.long
def test_nor_do_they_where_micro_batches_count_their_tokens(tmp_path, alone):
    extra = ["--tokens", "--micro-batches", 7]
    assert_same_bits(run_job(tmp_path, world=3, extra=extra), alone(extra=extra), SHORT)


@pytest.mark.parametrize(
    "phases",
    [("backward", "allreduce"), *(pytest.param((p, p), marks=pytest.mark.long) for p in ("backward", "allreduce"))],
)
def test_a_killed_rank_changes_no_bit_either(tmp_path, alone, phases):
    inject = [f"kill:rank=1,step=2,phase={phases[0]}", f"kill:rank=0,step=4,phase={phases[1]}"]
    job = run_job(tmp_path, world=3, spares=1, inject=inject)
    assert_same_bits(job, alone(), SHORT)
    assert_survivors_kept_their_process(job, [1, 0], 3)
    assert not job.events("restart"), job.explain()


@pytest.mark.long
def test_with_plain_ddp_they_depend_on_it_or_these_tests_prove_nothing(tmp_path, alone):
    extra = ["--wrapper", "ddp", "--dropout", 0]
    job = run_job(tmp_path, world=3, extra=extra)
    assert job.exit_code == 0, job.explain()
    assert samples(job) == samples(alone(extra=extra))
    assert history(job) != history(alone(extra=extra))


@pytest.mark.long
def test_replicate_without_the_mode_trains_like_ddp(tmp_path):
    # With two ranks DDP's halving before the sum and ours after it round alike.
    jobs = [run_job(tmp_path / w, world=2, extra=["--wrapper", w]) for w in ("ddp", "replicate")]
    assert_same_bits(jobs[1], jobs[0], SHORT)


def test_batch_norm_is_refused_by_name(tmp_path):
    job = run_job(tmp_path, world=2, extra=["--norm", "batch"])
    assert job.exit_code != 0
    assert "'norm.0' is a BatchNorm1d, whose running statistics depend on which micro-batches" in job.output


@pytest.mark.long
def test_a_hundred_steps_have_the_same_losses_on_1_2_3_and_4_ranks(tmp_path, alone):
    for world in (2, 3, 4):
        assert_same_bits(run_job(tmp_path / str(world), world=world, until=LONG), alone(LONG), LONG)


@pytest.mark.long
@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("phase", ["forward", "backward", "allreduce", "before_vote", "after_vote", "update"])
def test_a_kill_in_every_phase_changes_no_bit(tmp_path, alone, phase, world):
    until = 10
    inject = [f"kill:rank={rank},step={2 + 2 * rank},phase={phase}" for rank in range(world)]
    job = run_job(tmp_path, world=world, spares=1, until=until, inject=inject)
    assert_same_bits(job, alone(until), until)
    assert_survivors_kept_their_process(job, list(range(world)), world)
