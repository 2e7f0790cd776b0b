"""A training function is left at any line: nothing of what it was doing shows in what follows."""

import shutil

import pytest

from elastic_jobs import Elastic
from harness import JOBS, finish, start


def run_left(folder, case, *, world=2, spares=0, extra=(), options=(), until=6):
    process, command = start(
        folder, JOBS / "left_anywhere.py", "--out", folder, "--case", case, "--until", until, *extra,
        world=world, spares=spares, options=options,
    )  # fmt: skip
    return finish(folder, process, command)


@pytest.fixture(scope="module")
def undisturbed_case(tmp_path_factory):
    """By case: the job in which nobody dies."""
    jobs = {}

    def run(case, **options):
        if case not in jobs:
            job = run_left(tmp_path_factory.mktemp("calm"), case, **options)
            assert job.exit_code == 0, job.explain()
            jobs[case] = job
        return jobs[case]

    return run


def assert_same(job, reference):
    """Equal bits, of every step and at the end, and a fault there was."""
    why = job.explain()
    assert job.exit_code == 0, why
    assert [note for note in job.notes if "dies" in note], f"nobody died{why}"
    assert not job.events("restart"), why
    assert [line["step"] for line in job.metrics] == [line["step"] for line in reference.metrics], why
    assert [line["bits"] for line in job.metrics] == [line["bits"] for line in reference.metrics], why
    for rank, final in reference.finals().items():
        for key in ("final", "buffers", "calls"):
            assert job.finals()[rank][key] == final[key], f"rank {rank}: {key} differs{why}"


def long(*cases):
    return [pytest.param(case, marks=pytest.mark.long) for case in cases]


@pytest.mark.parametrize("case", ["update", *long("update-communicates", "update-restored")])
def test_a_forward_in_the_update_is_not_left_when_a_peer_dies(tmp_path, undisturbed_case, case):
    job = run_left(tmp_path, case, extra=["--kill-at", 3])
    assert_same(job, undisturbed_case(case))


def test_a_closure_that_communicates_says_what_to_write_at_its_first_step(tmp_path):
    job = run_left(tmp_path, "lbfgs")
    assert job.exit_code != 0 and not job.metrics, job.explain()
    assert "inside step.commit(...)" in job.output and "communicates=True" in job.output, job.explain()


LEFT = [
    "average:copy",
    *long(
        "eval", "schedule-free", "gan", "registered", "entry-option", "average:data", "average:pointer",
        "extra", "extra-restored", "extra-entry", "assigned", "lbfgs-communicates", "entry-mode", "entry-statistics",
        "average-eval",
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", LEFT)
def test_a_rank_that_dies_in_the_middle_changes_no_bit(tmp_path, undisturbed_case, case):
    job = run_left(tmp_path, case, extra=["--kill-at", 4])
    assert_same(job, undisturbed_case(case))


@pytest.mark.long
def test_a_rate_that_an_entry_scales_is_scaled_once_where_a_rank_dies_in_the_first_step(tmp_path, undisturbed_case):
    job = run_left(tmp_path, "entry-option", extra=["--kill-at", 1])
    assert_same(job, undisturbed_case("entry-option"))


BARE = [
    "average-bare:copy",
    *long("schedule-free-bare", "average-bare:data", "average-bare:pointer", "head"),
]


@pytest.mark.parametrize("case", BARE)
def test_state_that_is_changed_between_commits_is_named_before_any_fault(tmp_path, case):
    job = run_left(tmp_path, case)
    assert job.exit_code != 0, job.explain()
    assert "with run.restored():" in job.output and "'model/" in job.output, job.explain()
    assert len(job.metrics) == (4 if case == "head" else 2), job.explain()


LATE = {
    "late-option": "the optimizer's option 'lr' was changed after step.commit of step 2",
    "late-frozen": "requires_grad of 'model/head.bias' was changed after step.commit of step 2",
    "late-mode": "'model' has been in another mode (training or evaluation) since after step.commit of step 2",
    "late-teacher": "'average/module' has been in another mode (training or evaluation) since after step.commit of",
    "late-state": "'optimizer/state/0' was changed outside of step.commit; step.commit of step 5 found it",
    "late-extra": "'model/blocks.0 (get_extra_state)' was changed outside of step.commit; a forward after step 2 did",
    "late-statistics": "a forward in training mode after step 2 did it",
    "hidden-statistics": "a forward in training mode after step 2 did it",
}


@pytest.mark.parametrize(
    "case",
    [
        *("late-option", "late-state"),
        *long("late-frozen", "late-mode", "late-teacher", "late-extra", "late-statistics", "hidden-statistics"),
    ],
)
def test_what_a_fault_would_undo_is_named_where_it_comes_after_a_commit(tmp_path, case):
    job = run_left(tmp_path, case)
    assert job.exit_code != 0 and LATE[case] in job.output, job.explain()
    assert len(job.metrics) == (4 if case == "late-state" else 2), job.explain()


@pytest.mark.parametrize("case", ["entry-pointer", *long("entry-element")])
def test_what_each_entry_does_to_a_parameter_is_named_in_the_middle_of_training(tmp_path, case):
    job = run_left(tmp_path, case, extra=["--kill-at", 4])
    what = "'model/head.weight' was changed outside of step.commit; this entry of the function, which begins at step 3"
    assert job.exit_code != 0 and what in job.output, job.explain()
    assert len(job.metrics) == 3, job.explain()


def test_a_registered_evaluation_that_was_interrupted_is_made_again(tmp_path, undisturbed_case):
    job = run_left(tmp_path, "registered", extra=["--kill-at", 4])
    calm = undisturbed_case("registered")
    made = [(note["step"], note["rank"], note["validation"]) for note in job.notes if "validation" in note]
    assert sorted(made) == sorted((n["step"], n["rank"], n["validation"]) for n in calm.notes if "validation" in n), (
        job.explain()
    )
    assert [line.get("validation") for line in job.metrics] == [line.get("validation") for line in calm.metrics]


@pytest.mark.parametrize(
    ("case", "world", "extra"),
    [("one-changed", 3, []), pytest.param("all-changed", 2, ["--memory"], marks=pytest.mark.long)],
    ids=["from-a-peer", "from-memory"],
)
def test_a_survivor_whose_state_is_not_the_commits_is_no_source(tmp_path, undisturbed_case, case, world, extra):
    job = run_left(tmp_path, case, world=world, extra=["--kill-at", 4, *extra])
    assert "'model/head.bias' was changed outside of step.commit" in job.output, job.explain()
    assert_same(job, undisturbed_case(case, world=world, extra=extra))


def test_what_follows_the_last_commit_is_not_saved_as_the_last_step(tmp_path):
    job = run_left(tmp_path, "last", extra=["--memory"])
    assert job.exit_code != 0 and len(job.metrics) == 6, job.explain()
    assert "'model/head.bias' was changed outside of step.commit; the last checkpoint found it" in job.output
    assert not list((tmp_path / "saved").glob("step-*/.metadata")), job.explain()


def test_what_a_retry_hid_is_told_at_the_end(tmp_path):
    job = run_left(tmp_path, "raises", until=4)
    assert job.exit_code == 0, job.explain()
    (line,) = job.events("failure_outlived")
    assert line["steps"] == 2 and line["step"] == 2 and line["last_step"] == 4 and line["skipped"], job.explain()
    assert "validation of step 2 does not work" in line["because"], job.explain()
    assert "continued after failures" in job.output and line["because"] in job.output, job.explain()


def test_what_fails_after_three_commits_ends_the_job(tmp_path):
    job = run_left(tmp_path, "raises", until=8)
    assert job.exit_code == 1, job.explain()
    assert "validation of step 2 does not work" in job.output.splitlines()[-1], job.explain()
    assert "a redo resumes after the commit" in job.output, job.explain()
    assert "in evaluate\n" in job.output, "the traceback is missing" + job.explain()


@pytest.mark.long
def test_a_registered_evaluation_that_fails_again_ends_the_job(tmp_path):
    job = run_left(tmp_path, "registered-raises", until=8)
    assert job.exit_code == 1 and not job.events("finished"), job.explain()
    assert "validation of step 2 does not work" in job.output, job.explain()
    assert len(job.metrics) <= 2, job.explain()


@pytest.mark.long
def test_a_rate_and_modes_that_a_restart_sets_hold_also_where_a_rank_dies_in_its_first_step(tmp_path):
    first = run_left(tmp_path / "first", "entry", extra=["--memory"], until=2)
    assert first.exit_code == 0, first.explain()
    jobs = []
    for name, kill_at in (("calm", 0), ("left", 3)):
        shutil.copytree(tmp_path / "first" / "saved", tmp_path / name / "saved")
        extra = ["--memory", "--rate", 0.5, "--kill-at", kill_at]
        jobs.append(run_left(tmp_path / name, "entry", extra=extra, until=4))
        assert jobs[-1].exit_code == 0 and jobs[-1].metrics[0]["step"] == 3, jobs[-1].explain()
    assert_same(jobs[1], jobs[0])


@pytest.mark.long
def test_a_checkpoint_that_the_job_goes_back_to_is_no_restart_for_what_an_entry_sets(tmp_path, undisturbed_case):
    job = run_left(tmp_path, "entry-option", extra=["--every", 2, "--kill-at", 4, "--all"])
    calm = undisturbed_case("entry-option")
    assert job.exit_code == 0 and len([note for note in job.notes if "dies" in note]) == 2, job.explain()
    assert {note["version"] for note in job.notes if note.get("generation", 1) > 1 and "entry" in note} == {2}
    bits = {line["step"]: line["bits"] for line in job.metrics}
    assert bits == {line["step"]: line["bits"] for line in calm.metrics}, job.explain()
    assert job.finals()[0]["final"] == calm.finals()[0]["final"], job.explain()


@pytest.mark.long
def test_what_a_restart_takes_from_the_checkpoint_instead_of_the_script_is_told(tmp_path):
    first = run_left(tmp_path / "first", "entry", extra=["--memory"], until=2)
    assert first.exit_code == 0 and "the checkpoint of step" not in first.output, first.explain()
    shutil.copytree(tmp_path / "first" / "saved", tmp_path / "second" / "saved")
    job = run_left(tmp_path / "second", "frozen", extra=["--memory"], until=4)
    told = (
        "the checkpoint of step 2 changed the mode of 'model/norm', requires_grad of 'model/blocks.0.weight', "
        "requires_grad of 'model/blocks.0.bias': what it holds counts."
    )
    assert job.exit_code == 0 and job.output.count(told) == 1, job.explain()


def run_epochs(folder, case, *extra):
    return finish(folder, *start(folder, JOBS / "epochs.py", "--out", folder, "--case", case, *extra))


@pytest.mark.long
@pytest.mark.parametrize("case", ["from-that-epoch", "halved", "from-the-first", "thawed"])
def test_what_is_set_between_two_loops_is_that_of_an_undisturbed_run(tmp_path, case):
    calm = run_epochs(tmp_path / "calm", case)
    assert calm.exit_code == 0, calm.explain()
    for where in (["--kill-behind", 1], ["--kill-at", 5], ["--kill-at", 6]):
        job = run_epochs(tmp_path / "".join(map(str, where)), case, *where)
        assert_same(job, calm)
        assert [line["lr"] for line in job.metrics] == [line["lr"] for line in calm.metrics], job.explain()


@pytest.mark.long
def test_a_rate_that_changes_behind_a_loop_which_a_fault_left_is_told_of(tmp_path):
    job = run_epochs(tmp_path, "halved-from-there", "--kill-behind", 1)
    assert job.exit_code == 0, job.explain()
    assert "option 'lr' was changed between earlier loops, but not in front of the one that begins at step 4" in (
        job.output
    ), job.explain()


def test_a_forward_between_two_loops_that_moves_statistics_is_named(tmp_path):
    job = run_epochs(tmp_path, "statistics")
    assert job.exit_code != 0 and len(job.metrics) == 2, job.explain()
    assert "'model/1." in job.output and "a forward in training mode after step 2 did it" in job.output, job.explain()


@pytest.mark.long
def test_what_a_function_of_on_resize_does_to_a_rate_holds_on_all_ranks(tmp_path):
    with Elastic(tmp_path, "--case", "resized", "--epochs", 100000, nodes="1:1", script="epochs.py") as job:
        job.start(0)
        for ranks in (2, 1, 2):
            if job.steps():
                job.scale(ranks)
            job.wait_for_world(ranks)
        job.kill_rank(1)
        job.wait_for_more_steps(3)
        done = job.stop()
    for line in done.metrics:
        rates = {line["lr"], *(value for name, value in line.items() if name.startswith("lr_of_"))}
        assert rates == {0.05 if line["world"] == 1 else 0.1}, line


@pytest.mark.long
def test_an_optimizer_that_is_made_in_the_middle_is_named_at_its_first_step(tmp_path):
    job = run_left(tmp_path, "late-optimizer")
    assert job.exit_code != 0 and len(job.metrics) == 2, job.explain()
    assert "step.commit of step 3: this SGD steps 'model/blocks.0.weight', which is protected" in job.output
