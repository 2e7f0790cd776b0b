"""Bad input gets a message that names what, where and what to do; bad luck leaves nothing behind."""

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from harness import JOBS, KEEPSTEP, environment, finish, json_lines, run_small, start
from user_scripts import run_script, steps_done, training, wait_for


def keepstep(*args, **options):
    return subprocess.run(
        [KEEPSTEP, *map(str, args)], env=environment(), capture_output=True, text=True, timeout=120, **options
    )


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def job_pids(folder):
    return [line["pid"] for line in json_lines(folder / "journal" / "journal.jsonl") if line["event"] == "spawned"]


def test_all_mistakes_in_the_options_are_listed_at_once():
    done = keepstep("run", "--nproc-per-node", "zero", "--spares", "-1", "--nproc-per-nod", "2", "no_such_script.py")
    assert done.returncode == 2
    for words in ("zero", "--spares", "nproc-per-nod"):
        assert words in done.stderr, done.stderr


def test_a_missing_script_is_named_with_its_path(tmp_path):
    done = keepstep("run", "absent.py", cwd=tmp_path)
    assert done.returncode == 2
    assert str(tmp_path / "absent.py") in done.stderr


def test_a_master_port_in_use_is_said_before_anything_starts(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = keepstep("run", "--master-port", port, JOBS / "small.py", "--out", tmp_path)
    assert done.returncode != 0
    assert str(port) in done.stderr


def test_too_few_file_descriptors_are_said_before_anything_starts(tmp_path):
    done = subprocess.run(
        ["bash", "-c", f"ulimit -n 40; exec {KEEPSTEP} run --nproc-per-node 8 {JOBS / 'small.py'} --out {tmp_path}"],
        env=environment(), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode != 0
    assert "file" in done.stderr and "ulimit" in done.stderr, done.stderr


def test_ranks_that_protect_different_shapes_are_told_both_sides(tmp_path):
    job = run_script(
        tmp_path,
        training(
            "rank = run.rank",
            "model = run.setup(lambda: keepstep.State(model=torch.nn.Linear(4, 4 + rank))).model",
            "run.ddp(model)",
        ),
    )
    assert job.exit_code != 0
    assert "'model/weight'" in job.output and "float32[5, 4]" in job.output and "float32[4, 4]" in job.output, (
        job.output
    )


def test_state_that_cannot_be_carried_is_named(tmp_path):
    job = run_script(
        tmp_path,
        "class Odd:\n"
        "    def state_dict(self): return {'lock': object()}\n"
        "    def load_state_dict(self, state): pass\n"
        + training(
            "run.setup(lambda: keepstep.State(odd=Odd()))",
        ),
    )
    assert job.exit_code != 0
    assert "'odd/lock'" in job.output and "object" in job.output, job.output


@pytest.mark.long
def test_touching_the_rank_in_build_says_so(tmp_path):
    for what in ("int(os.environ['RANK'])", "run.rank"):
        folder = tmp_path / what[:3]
        folder.mkdir()
        job = run_script(folder, training(f"run.setup(lambda: {what})"))
        assert job.exit_code != 0
        assert "build runs before this process has one" in job.output, job.output


@pytest.mark.long
def test_a_change_outside_the_commit_is_named(tmp_path):
    job = run_script(
        tmp_path,
        training(
            "model = run.setup(lambda: keepstep.State(model=torch.nn.Linear(4, 4))).model",
            "for step in run.steps(Data(), global_batch=4, micro_batch=1, last_step=5):",
            "    for x in step: step.backward(model(x).sum())",
            "    with torch.no_grad(): model.bias.add_(1)",
            "    step.commit(lambda: None)",
        ),
    )
    assert job.exit_code != 0
    assert "'model/bias'" in job.output and "outside step.commit" in job.output, job.output


def test_an_optimizer_that_steps_outside_the_commit_is_named(tmp_path):
    job = run_script(
        tmp_path,
        "def build():\n"
        "    model = torch.nn.Linear(4, 4)\n"
        "    return keepstep.State(model=model, adam=torch.optim.Adam(model.parameters()))\n"
        + training(
            "state = run.setup(build)",
            "for step in run.steps(Data(), global_batch=4, micro_batch=1, last_step=5):",
            "    for x in step: step.backward(state.model(x).sum())",
            "    state.adam.step()",
            "    step.commit()",
        ),
    )
    assert job.exit_code != 0
    assert "'adam' steps outside step.commit" in job.output and "Write step.commit(adam.step)" in job.output, job.output


def test_a_model_that_each_entry_makes_is_refused_and_not_trained_in_secret(tmp_path):
    job = run_script(
        tmp_path,
        training(
            "model = torch.nn.Linear(4, 4)",
            "state = run.setup(lambda: keepstep.State(model=model))",
            "for step in run.steps(Data(), global_batch=4, micro_batch=1, last_step=5):",
            "    for x in step: step.backward(model(x).sum())",
            "    step.commit(lambda: None)",
        ),
        options=["--inject", "kill:rank=1,step=3,phase=before_vote"],
    )
    assert job.exit_code != 0
    assert "the training loop uses module 'model', which is not protected" in job.output, job.output


@pytest.mark.long
def test_what_run_ddp_wraps_is_protected(tmp_path):
    job = run_script(
        tmp_path,
        training(
            "run.setup(lambda: keepstep.State(model=torch.nn.Linear(4, 4)))",
            "run.ddp(torch.nn.Linear(4, 4))",
        ),
    )
    assert job.exit_code != 0
    assert "no parameter of this Linear is protected; wrap a model that build() returned" in job.output, job.output


@pytest.mark.long
def test_a_checkpoint_that_comes_too_late_is_refused(tmp_path):
    job = run_script(
        tmp_path,
        training(
            "state = run.setup(lambda: keepstep.State(model=torch.nn.Linear(4, 4)))",
            "run.ddp(state.model)",
            f"run.checkpoint({str(tmp_path / 'saved')!r})",
        ),
    )
    assert job.exit_code != 0
    assert "run.checkpoint comes too late" in job.output, job.output


@pytest.mark.long
def test_what_build_returns_is_a_state(tmp_path):
    job = run_script(tmp_path, training("run.setup(lambda: torch.nn.Linear(4, 4))"))
    assert job.exit_code != 0
    assert "build() returned a Linear; return keepstep.State(" in job.output, job.output


@pytest.mark.long
def test_a_second_state_has_a_name(tmp_path):
    job = run_script(
        tmp_path,
        training(
            "one = lambda: keepstep.State(model=torch.nn.Linear(4, 4))",
            "student, teacher = run.setup(one), run.setup(one, name='teacher')",
            "assert not torch.equal(student.model.weight, teacher.model.weight)",
            "print('protected:', *run._registry.objects, flush=True)",
            "run.setup(one, name='teacher')",
        ),
    )
    assert job.exit_code != 0
    assert "protected: model teacher.model" in job.output, job.output
    assert "the state 'teacher' is set up already in this entry" in job.output, job.output


def test_a_loss_that_is_infinite_does_not_hide_the_step(tmp_path):
    job = run_script(
        tmp_path,
        training(
            "model = run.setup(lambda: keepstep.State(model=torch.nn.Linear(1, 1))).model",
            "replica = run.ddp(model)",
            "for step in run.steps([torch.ones(1)] * 8, global_batch=2, micro_batch=1, last_step=4):",
            "    for x in step:",
            "        step.backward(replica(x).sum() * (float('inf') if step.number == 2 else 1))",
            "    step.commit()",
        ),
    )
    assert job.exit_code == 0, job.explain()
    assert not job.events("refused"), job.explain()
    assert [line["step"] for line in job.metrics] == [1, 2, 3, 4], job.explain()
    assert [isinstance(line["loss"], str) for line in job.metrics] == [False, True, False, False], job.metrics
    assert all("committed_mono" in line for line in job.metrics), job.explain()


@pytest.mark.long
def test_an_unprotected_optimizer_is_named(tmp_path):
    job = run_script(
        tmp_path,
        "def build():\n"
        "    model = torch.nn.Linear(4, 4)\n"
        "    return keepstep.State(model=model).with_unprotected(adam=torch.optim.Adam(model.parameters()))\n"
        + training(
            "state = run.setup(build)",
            "model, adam = state.model, state.adam",
            "for step in run.steps(Data(), global_batch=4, micro_batch=1, last_step=5):",
            "    for x in step: step.backward(model(x).sum())",
            "    step.commit(adam.step)",
        ),
    )
    assert job.exit_code != 0
    assert "optimizer 'adam'" in job.output, job.output


def test_a_collective_inside_the_update_is_refused_by_name(tmp_path):
    job = run_script(
        tmp_path,
        "import torch.distributed as dist\n"
        + training(
            "model = run.setup(lambda: keepstep.State(model=torch.nn.Linear(4, 4))).model",
            "replica = run.ddp(model)",
            "for step in run.steps(Data(), global_batch=4, micro_batch=1, last_step=5):",
            "    for x in step: step.backward(replica(x).sum())",
            "    step.commit(lambda: dist.all_reduce(model.weight.data))",
        ),
    )
    assert job.exit_code != 0
    assert "all_reduce inside step.commit" in job.output, job.output


def test_an_exception_that_comes_back_ends_the_job_with_its_traceback(tmp_path):
    job = run_small(tmp_path, extra=["--raise-at", "3"])
    assert job.exit_code != 0
    assert "a bug in the user's code" in job.output and "small.py" in job.output, job.explain()


def test_an_update_that_fails_on_every_rank_says_that_no_intact_source_is_left(tmp_path):
    job = run_small(tmp_path, extra=["--break-update"], options=["--max-restarts", "0"])
    assert job.exit_code != 0
    assert "no memory for the update" in job.output or "no clean copy" in job.output, job.explain()
    assert any("no clean copy" in line.get("because", "") for line in job.journal), job.explain()


def test_an_import_error_in_the_script_ends_the_job_at_once(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("import no_such_module_anywhere\n")
    process, command = start(tmp_path, path)
    job = finish(tmp_path, process, command)
    assert job.exit_code == 1
    assert "no_such_module_anywhere" in job.output


def test_a_warning_is_shown_once_by_a_process_however_often_it_enters_the_function(tmp_path):
    job = run_script(
        tmp_path,
        "import warnings\n"
        + training(
            "model = run.setup(lambda: keepstep.State(model=torch.nn.Linear(4, 4))).model",
            "with warnings.catch_warnings():",
            "    pass  # Python forgets here what it has shown",
            "warnings.warn('the same in each entry')",
            "for step in run.steps(Data(), global_batch=2, micro_batch=1, last_step=6):",
            "    for x in step:",
            "        step.backward(model(x).square().mean())",
            "    warnings.warn(f'only in step {run.version + 1}')",
            "    step.commit(lambda: None)",
        ),
        options=["--inject", "kill:rank=1,step=3,phase=before_vote"],
    )
    assert job.exit_code == 0, job.explain()
    assert job.output.count("UserWarning: the same in each entry") == 3, job.output  # of three processes
    assert job.output.count("UserWarning: only in step 5") == 2, job.output


def test_ctrl_c_stops_everything_cleanly(tmp_path):
    process, command = start(
        tmp_path, JOBS / "small.py", "--out", tmp_path, "--until", 100000, "--sleep", "0.01", world=2, spares=1
    )
    wait_for(lambda: steps_done(tmp_path) >= 3, "training")
    pids = job_pids(tmp_path)
    process.send_signal(signal.SIGINT)
    job = finish(tmp_path, process, command)
    assert job.exit_code == 130, job.explain()
    assert not [pid for pid in pids if alive(pid)], job.explain()


@pytest.mark.parametrize("options", [pytest.param([], marks=pytest.mark.long), ["--spares", "1"]])
def test_when_the_agent_dies_its_workers_end_and_say_so(tmp_path, options):
    process, _ = start(
        tmp_path, JOBS / "small.py", "--out", tmp_path, "--until", 100000, "--sleep", "0.01", options=options
    )
    wait_for(lambda: steps_done(tmp_path) >= 3, "training")
    pids = job_pids(tmp_path)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_for(lambda: not [pid for pid in pids if alive(pid)], "the end of all workers")
    wait_for(
        lambda: not subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True).stdout,
        "the end of the zygote",
    )
    marks = ["keepstep", *map(str, [process.pid, *pids])]
    assert not [name for name in os.listdir("/dev/shm") if any(mark in name for mark in marks)]
