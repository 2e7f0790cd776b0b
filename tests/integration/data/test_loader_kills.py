"""Processes of loaders, and of jobs that have some, are killed: who lives goes on, and no files stay behind."""

import os
import shutil
import tempfile

import pytest

from harness import JOBS, finish, start
from user_scripts import script, steps_done, wait_for

BODY = """
import signal, time
from pathlib import Path
from torch.utils.data import DataLoader, Dataset, get_worker_info
OUT = Path(sys.argv[1])
class Loaded(Dataset):
    def __len__(self): return 4000
    def __getitem__(self, i):
        worker = get_worker_info().id
        if os.environ["RANK"] == "0" and i >= 160 and not (OUT / "killed").exists():
            if worker == 1:
                (OUT / "busy").touch()
                time.sleep(3)  # longer than a rank may keep the others waiting
            else:
                while not ((OUT / "busy").exists() and (OUT / "computes").exists()): time.sleep(0.01)
                (OUT / "killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return torch.full((4,), float(i))
def build():
    model = torch.nn.Linear(4, 4)
    return keepstep.State(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1e-6))
@keepstep.recoverable
def train(run):
    state = run.setup(build)
    model, optimizer = state.model, state.optimizer
    replica = run.ddp(model)
    steps = iter(run.steps(Data(), global_batch=2, micro_batch=1, last_step=120))
    for x in DataLoader(Loaded(), batch_size=2, num_workers=2):
        step = next(steps, None)
        if step is None:
            break
        if run.rank == 0 and x[0][0] == 158 and not (OUT / "killed").exists():
            (OUT / "computes").touch()
            while True: time.sleep(0.001)  # so that the error comes outside of the loader
        for _ in step:
            step.backward(replica(x).square().mean())
        step.commit(optimizer.step)
    with open(OUT / "done", "a") as done:
        done.write(f"{run.rank} {os.getpid()}\\n")
train()
"""


def test_a_rank_whose_loader_process_was_killed_keeps_its_own_while_the_loader_ends(tmp_path):
    process, command = start(tmp_path, script(tmp_path, BODY), tmp_path)
    job = finish(tmp_path, process, command)
    assert job.exit_code == 0, job.explain()
    assert (tmp_path / "killed").exists(), job.explain()
    assert [line["rung"] for line in job.events("rung")] == ["redo"], job.explain()
    assert not job.events("hang"), job.explain()
    assert len(job.events("spawned")) == 2, job.explain()


@pytest.fixture
def temp(monkeypatch):
    """A folder for temporary files with a short path: sockets lie there."""
    folder = tempfile.mkdtemp(prefix="ks-test-")
    monkeypatch.setenv("TMPDIR", folder)
    yield folder
    shutil.rmtree(folder)


def test_killed_ranks_and_loader_processes_leave_no_temporary_files(tmp_path, temp):
    process, command = start(
        tmp_path, script(tmp_path, BODY), tmp_path, options=["--inject", "kill:rank=1,step=30,phase=backward"]
    )
    job = finish(tmp_path, process, command)
    assert job.exit_code == 0, job.explain()
    assert (tmp_path / "killed").exists() and len(job.events("spawned")) == 3, job.explain()
    assert left_in(temp) == [], job.explain()


def left_in(folder):
    return [name for name in os.listdir(folder) if not name.startswith("torchinductor_")]  # that is a cache


def test_a_killed_launcher_leaves_no_temporary_files(tmp_path, temp):
    process, _ = start(tmp_path, JOBS / "small.py", "--out", tmp_path, "--until", 100000, "--sleep", "0.01")
    wait_for(lambda: steps_done(tmp_path) >= 3, "training")
    assert left_in(temp)
    process.kill()
    process.wait()
    wait_for(lambda: not left_in(temp), "the removal of temporary files")
