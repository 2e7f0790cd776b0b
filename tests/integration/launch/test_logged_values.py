"""What step.log publishes, where there is more of it than the log between rank and agent holds at once."""

from harness import finish, start

SCRIPT = """
import keepstep, torch

class Nothing(torch.utils.data.Dataset):
    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        return index

def build():
    model = torch.nn.Linear(2, 2)
    return keepstep.State(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))

@keepstep.recoverable
def train(run):
    state = run.setup(build)
    model, optimizer = state.model, state.optimizer
    for step in run.steps(Nothing(), global_batch=2, micro_batch=1, last_step=6):
        for _ in step:
            pass
        step.log(early="x" * 80_000, which=f"rank {run.rank} before")
        step.commit(optimizer.step)
        for part in range(6):
            step.log(**{f"part{part}": f"{step.number}." * 20_000, "which": f"rank {run.rank}, {part}"})

train()
"""


def test_more_than_the_log_holds_is_published_whole_in_order_and_once(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    process, command = start(tmp_path, script, world=2)
    job = finish(tmp_path, process, command)
    assert job.exit_code == 0, job.explain()
    assert [line["step"] for line in job.metrics] == list(range(1, 7)), job.explain()
    for line in job.metrics:
        assert line["early"] == "x" * 80_000
        assert [line[f"part{part}"] == f"{line['step']}." * 20_000 for part in range(6)] == [True] * 6, line["step"]
        assert line["which"] == "rank 0, 5", "the lowest rank's last value counts"
    assert not job.events("refused"), job.explain()
