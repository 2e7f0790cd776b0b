"""A training function is left at any line: nothing of what it was doing shows in what follows."""

import pytest

from harness import JOBS, finish, start


def run_left(folder, case, *, spares=0, extra=(), options=(), until=6):
    process, command = start(
        folder, JOBS / "left_anywhere.py", "--out", folder, "--case", case, "--until", until, *extra,
        world=2, spares=spares, options=options,
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


@pytest.mark.parametrize("case", ["update", "update-communicates"])
def test_a_forward_in_the_update_is_not_left_when_a_peer_dies(tmp_path, undisturbed_case, case):
    job = run_left(tmp_path, case, extra=["--kill-at", 3])
    assert_same(job, undisturbed_case(case))
