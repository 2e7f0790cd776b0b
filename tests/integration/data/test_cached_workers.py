"""`cached` around a loader with processes of its own, which outlives the rank that started it."""

from user_scripts import run_script, training

TRAINING = training(
    "def build():",
    "    model = torch.nn.Linear(4, 4)",
    "    return keepstep.State(model=model, optimizer=torch.optim.SGD(model.parameters(), 0.01))",
    "state = run.setup(build)",
    "model = run.ddp(state.model)",
    "loader = keepstep.data.cached(torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=2))",
    "for step in run.steps(loader, global_batch=8, micro_batch=2, last_step=40):",
    "    for batch in step:",
    "        step.backward(model(batch).square().mean())",
    "    step.commit(state.optimizer.step)",
)


def test_it_goes_on_when_each_rank_was_killed_once(tmp_path):
    inject = ["kill:rank=1,step=17,phase=backward", "kill:rank=0,step=25,phase=after_vote"]
    options = [part for fault in inject for part in ("--inject", fault)]
    job = run_script(tmp_path, "import keepstep.data\n" + TRAINING, spares=1, options=options)
    assert job.exit_code == 0, job.explain()
    assert len(job.metrics) == 40, job.explain()
