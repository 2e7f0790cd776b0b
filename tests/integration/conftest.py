import os
import signal

import pytest

from harness import run_small
from running_jobs import Running


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """The same job without faults, by (world, model, until); each is run once."""
    known = {}

    def get(world, model="plain", until=12, extra=()):
        key = (world, model, until, tuple(extra))
        if key not in known:
            folder = tmp_path_factory.mktemp(f"undisturbed-{world}-{model}")
            known[key] = run_small(folder, world=world, model=model, until=until, extra=extra)
            assert known[key].exit_code == 0, known[key].explain()
        return known[key]

    return get


@pytest.fixture
def running(tmp_path):
    jobs = []

    def begin(name, **how):
        jobs.append(Running(tmp_path / name, f"{name}-{os.getpid()}", **how))
        return jobs[-1]

    yield begin
    for job in jobs:
        if job.process.poll() is None:
            os.killpg(job.process.pid, signal.SIGKILL)
            job.process.wait()
