"""A process that dies after the training function returned on all ranks: what the others still write is left alone."""

import os
import signal
from pathlib import Path

from harness import LIMIT_S, finish, json_lines, start
from user_scripts import wait_for

SCRIPT = """
import os, signal, sys, time
from pathlib import Path
import torch, torch.distributed as dist
import keepstep

out = Path(sys.argv[1])

def came(name):
    while not (out / name).exists():
        time.sleep(0.01)

def build():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    return keepstep.State(model=model, sgd=torch.optim.SGD(model.parameters(), lr=0.1))

@keepstep.recoverable
def train(run):
    state = run.setup(build)
    model, sgd = state.model, state.sgd
    replica = run.ddp(model)
    for step in run.steps([torch.ones(4)] * 12, global_batch=3, micro_batch=1, last_step=3):
        for x in step:
            step.backward(replica(x).sum())
        step.commit(sgd.step)
    return model

model = train()
rank = int(os.environ["RANK"])
signal.signal(signal.SIGTERM, lambda *_: (out / f"terminated.{rank}").touch())
(out / f"released.{rank}").touch()
if rank == 0:
    came("go")
    (out / "last.part").write_text(f"{model(torch.ones(4)).numel()} and the rest")
    (out / "last.part").rename(out / "last.txt")
elif rank == 1:
    (out / "pid.part").write_text(str(os.getpid()))
    (out / "pid.part").rename(out / "pid.1")
    came("never")
else:
    try:
        dist.all_reduce(torch.ones(4))
    except RuntimeError as error:
        (out / "error.part").write_text(str(error))
        (out / "error.part").rename(out / "error.2")
"""


def test_a_death_after_the_last_step_does_not_end_who_still_writes(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    process, command = start(tmp_path, script, tmp_path, world=3, spares=1)
    files = ["released.0", "released.2", "pid.1"]
    wait_for(lambda: all((tmp_path / name).exists() for name in files), "the release", LIMIT_S)
    os.kill(int((tmp_path / "pid.1").read_text()), signal.SIGKILL)
    # Who waits for the dead rank is told, and gets no zeros.
    wait_for(lambda: (tmp_path / "error.2").exists(), "the error of rank 2", LIMIT_S)
    assert (
        "all_reduce after the training function had returned: another rank is gone"
        in (tmp_path / "error.2").read_text()
    )
    journal = tmp_path / "journal" / "journal.jsonl"
    wait_for(lambda: any(line["event"] == "late_death" for line in json_lines(journal)), "late_death", LIMIT_S)
    assert process.poll() is None, "the job ended although rank 0 still writes"
    assert "left to finish" in Path(tmp_path / "output.txt").read_text()
    (tmp_path / "go").touch()
    job = finish(tmp_path, process, command)
    assert (tmp_path / "last.txt").read_text() == "1 and the rest", job.explain()
    assert not list(tmp_path.glob("terminated.*")), job.explain()
    assert job.exit_code == 1, job.explain()
    for words in ("rank 1 (pid", "SIGKILL", "all steps are committed", "may be missing"):
        assert words in job.output, job.explain()
    assert [line["ranks"] for line in job.events("late_death")] == [[1]], job.explain()
    assert [line["step"] for line in job.metrics] == [1, 2, 3], job.explain()
    exits = {line["worker"]: line["exit_code"] for line in job.events("exit_confirmed") if line["signal"] == 0}
    assert exits[0] == exits[2] == 0, job.explain()
