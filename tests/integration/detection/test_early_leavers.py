"""A rank that leaves the loop over steps alone is named within seconds, with the step and with whoever waits."""

import pytest

from harness import JOBS, finish, start


def run(folder, mode, *extra):
    process, command = start(
        folder, JOBS / "leaves_early.py", mode, "--journal", folder / "journal" / "journal.jsonl", *extra
    )
    return finish(folder, process, command)


@pytest.mark.parametrize(
    ("mode", "extra"), [("break", []), pytest.param("return", ["--alone"], marks=pytest.mark.long), ("exit", [])]
)
def test_a_rank_that_ends_alone_ends_the_job_with_its_name(tmp_path, mode, extra):
    job = run(tmp_path, mode, *extra)
    assert job.exit_code == 1, job.explain()
    (event,) = job.events("left_early")
    assert (event["rank"], event["step"], event["waiting"], event["waiting_step"]) == (1, 3, [0], 4), job.explain()
    assert event["for_ever"], job.explain()
    assert "rank 1's training function returned after step 3; rank 0 waits for it in step 4" in job.output, job.output
    assert "torch.distributed.all_reduce(flag)" in job.output, job.output
    assert len(job.metrics) == 3 and not job.events("hang"), job.explain()


def test_a_rank_that_comes_back_is_told_of_and_the_job_goes_on(tmp_path):
    job = run(tmp_path, "back")
    assert job.exit_code == 0, job.explain()
    (event,) = job.events("left_early")
    assert not event["for_ever"], job.explain()
    assert "rank 1 left its loop over run.steps after step 3; rank 0 waits for it in step 4" in job.output, job.output
    assert [line["step"] for line in job.metrics] == [1, 2, 3, 4, 5, 6], job.explain()


@pytest.mark.parametrize("mode", ["break", pytest.param("exit", marks=pytest.mark.long)])
def test_ranks_that_leave_together_are_not_early(tmp_path, mode):
    job = run(tmp_path, mode, "--together")
    assert job.exit_code == 0, job.explain()
    assert not job.events("left_early") and len(job.metrics) == 3, job.explain()
    assert job.output.count("the script went on") == (2 if mode == "break" else 0), job.output
