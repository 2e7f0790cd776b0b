"""What would go wrong silently is said: lost steps, faults that never happen, gradients that nothing weights."""

from user_scripts import run_script, training

ALONE = training(
    "def build():",
    "    model = torch.nn.Linear(4, 1)",
    "    return keepstep.State(model=model, optimizer=torch.optim.SGD(model.parameters(), 1e-4))",
    "state = run.setup(build)",
    "for step in run.steps(Data(), global_batch=4, micro_batch=4, last_step=12):",
    "    for batch in step:",
    "        state.model(batch).mean().backward()",
    "    step.commit(state.optimizer.step)",
)
GLOO = training(
    "state = run.setup(lambda: keepstep.State(model=torch.nn.Linear(4, 1)))",
    "torch.distributed.init_process_group('gloo')",
    "for step in run.steps(Data(), global_batch=4, micro_batch=2, last_step=3):",
    "    step.commit()",
)


def test_a_job_of_one_rank_says_how_many_steps_its_death_cost(tmp_path):
    faults = ["--inject", "kill:rank=0,step=9,phase=backward", "--inject", "kill:rank=0,step=4000,phase=backward"]
    job = run_script(tmp_path, ALONE, world=1, options=faults)
    assert job.exit_code == 0, job.explain()
    (restart,) = job.events("restart")
    assert restart["lost_steps"] == 8, job.explain()

    (missed,) = job.events("not_injected")
    assert "'kill:rank=0,step=4000,phase=backward' never happened" in missed["because"]
    assert "its last step was 12" in missed["because"] and missed["because"] in job.output, job.output

    assert job.output.count("was committed without step.backward(loss)") == 2, job.output  # by each process once
    assert [line["step"] for line in job.events("without_loss")] == [1, 1], job.explain()


def test_a_process_group_that_no_replacement_can_join_is_refused_before_the_first_step(tmp_path):
    job = run_script(tmp_path, GLOO, world=2)
    assert job.exit_code == 1, job.explain()
    assert "no replacement can join the process group of init_process_group('gloo')" in job.output, job.output
    assert not job.metrics, job.explain()
