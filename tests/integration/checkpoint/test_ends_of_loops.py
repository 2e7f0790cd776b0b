"""What run.checkpoint saves at the end of a loop, of one that is left by `break`, and of several."""

from pathlib import Path

import pytest

from user_scripts import run_script

LOOP = """
@keepstep.recoverable
def train(run):
    def build():
        model = torch.nn.Linear(4, 4)
        return keepstep.State(model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
    state = run.setup(build)
    run.checkpoint(keepstep.Destination(sys.argv[1], every_steps=100))
    model = run.ddp(state.model)
    for last in map(int, sys.argv[2].split(",")):
        for step in run.steps(Data(), global_batch=4, micro_batch=1, last_step=last):
            for batch in step:
                step.backward(model(batch).sum())
            step.commit(state.optimizer.step)
            if len(sys.argv) > 3 and step.number == int(sys.argv[3]):
                break
train()
"""


def saved(folder):
    return sorted(int(path.name.removeprefix("step-")) for path in Path(folder).glob("step-*"))


def test_a_loop_that_is_left_by_break_is_saved_when_the_function_returns(tmp_path):
    job = run_script(tmp_path, LOOP, (tmp_path / "saves", 9, 5))
    assert job.exit_code == 0, job.explain()
    assert saved(tmp_path / "saves") == [5], job.explain()


@pytest.mark.parametrize("killed_at", [None, 8])
def test_each_of_several_loops_is_saved_once_at_its_end(tmp_path, killed_at):
    options = [] if killed_at is None else ["--inject", f"kill:rank=1,step={killed_at},phase=backward"]
    job = run_script(tmp_path, LOOP, (tmp_path / "saves", "3,6,9"), options=options)
    assert job.exit_code == 0, job.explain()
    assert saved(tmp_path / "saves") == [3, 6, 9], job.explain()
    assert "could not be saved" not in job.output, job.explain()
