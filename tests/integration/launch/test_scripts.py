"""Scripts as users have them: unchanged torchrun scripts, modules, programs; and what they print."""

import os
import subprocess

import pytest

from harness import JOBS, KEEPSTEP, PYTHON, environment, finish, start


def run(folder, script, *args, **options):
    process, command = start(folder, script, *args, **options)
    return finish(folder, process, command)


def test_an_unchanged_torchrun_script_runs(tmp_path):
    job = run(tmp_path, JOBS / "torchrun_style.py", tmp_path, 5, -1)
    assert job.exit_code == 0, job.explain()
    done = sorted((note["rank"], note["local"], note["world"], note["done"]) for note in job.notes)
    assert done == [(0, 0, 2, 5), (1, 1, 2, 5)], job.explain()


def test_a_fault_in_an_unchanged_script_restarts_all_ranks_from_the_zygote(tmp_path):
    job = run(tmp_path, JOBS / "torchrun_style.py", tmp_path, 6, 3)
    assert job.exit_code == 0, job.explain()
    assert [note["restarts"] for note in job.notes] == [1, 1], job.explain()
    assert [note["first"] for note in job.notes] == [4, 4], job.explain()
    assert job.events("restart"), job.explain()


@pytest.mark.parametrize("world", [4, *(pytest.param(world, marks=pytest.mark.long) for world in (1, 2))])
def test_every_collective_gives_what_its_definition_says(tmp_path, world):
    job = run(tmp_path, JOBS / "collectives.py", world=world)
    assert job.exit_code == 0, job.explain()
    assert job.output.count("all collectives agree") == world, job.explain()


def test_a_script_that_leaves_a_pool_of_threads_idle_ends(tmp_path):
    (tmp_path / "pool.py").write_text(
        "import atexit, os\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "pool = ThreadPoolExecutor(1)\n"
        "atexit.register(print, 'at exit', os.environ['RANK'])\n"
        "print('in a thread', pool.submit(lambda: os.environ['RANK']).result())\n"
    )
    process, command = start(tmp_path, tmp_path / "pool.py")
    job = finish(tmp_path, process, command, limit_s=60)
    assert job.exit_code == 0, job.explain()
    assert job.output.count("in a thread") == job.output.count("at exit") == 2, job.explain()


def test_a_module_and_a_program_run_too(tmp_path):
    (tmp_path / "mine.py").write_text("import os, sys\nprint('rank', os.environ['RANK'], sys.argv[1:])\n")
    values = environment()
    module = subprocess.run(
        [KEEPSTEP, "run", "--nproc_per_node", "2", "-m", "mine", "--flag"],
        cwd=tmp_path, env=values, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert module.returncode == 0, module.stderr
    assert sorted(module.stdout.splitlines()) == ["rank 0 ['--flag']", "rank 1 ['--flag']"]
    program = subprocess.run(
        [KEEPSTEP, "run", "--nproc-per-node", "2", "--no-python", "bash", "-c", "echo program $RANK of $WORLD_SIZE"],
        env=values, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert program.returncode == 0, program.stderr
    assert sorted(program.stdout.splitlines()) == ["program 0 of 2", "program 1 of 2"]


def test_logs_go_to_files_by_rank_and_generation(tmp_path):
    (tmp_path / "talk.py").write_text("import os\nprint('hello from', os.environ['RANK'])\n")
    done = subprocess.run(
        [KEEPSTEP, "run", "--nproc-per-node", "2", "--log-dir", tmp_path / "logs", "--rdzv-id", "job", "--tee", "3",
         "--local-ranks-filter", "1", tmp_path / "talk.py"],
        env=environment(), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "[default1]:hello from 1" in done.stdout
    assert "hello from 0" not in done.stdout
    for rank in range(2):
        assert (
            tmp_path / "logs" / "job" / "attempt_1" / str(rank) / "stdout.log"
        ).read_text() == f"hello from {rank}\n"


def test_the_zygote_can_be_left_out(tmp_path):
    (tmp_path / "talk.py").write_text("import os\nprint('hello from', os.environ['RANK'])\n")
    done = subprocess.run(
        [KEEPSTEP, "run", "--nproc-per-node", "2", "--no-preload", tmp_path / "talk.py"],
        env=environment(), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["hello from 0", "hello from 1"]
    assert os.listdir("/dev/shm") == [] or not any("keepstep" in name for name in os.listdir("/dev/shm"))


@pytest.mark.long
def test_a_model_saved_whole_in_the_loop_loads_without_keepstep(tmp_path):
    (tmp_path / "parts.py").write_text(
        "import torch\n"
        "class Data(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 64\n"
        "    def __getitem__(self, i): return torch.full((4,), float(i))\n"
    )
    (tmp_path / "save.py").write_text(
        "import copy, torch, keepstep, parts\n"
        "@keepstep.recoverable\n"
        "def train(run):\n"
        "    layers = lambda: torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))\n"
        "    model = run.setup(lambda: keepstep.State(model=layers())).model\n"
        "    replica = run.ddp(model)\n"
        "    for step in run.steps(parts.Data(), global_batch=4, micro_batch=1, last_step=2):\n"
        "        for x in step: step.backward(replica(x).sum())\n"
        "        step.commit(lambda: None)\n"
        "        assert torch.equal(copy.deepcopy(model)(x), model(x))\n"
        f"    run.once('save', torch.save, model, {str(tmp_path / 'model.pt')!r})\n"
        "train()\n"
    )
    job = run(tmp_path / "job", tmp_path / "save.py")
    assert job.exit_code == 0, job.explain()
    loaded = subprocess.run(
        [PYTHON, "-c",
         "import sys; sys.modules['keepstep'] = None\n"
         f"import torch; model = torch.load({str(tmp_path / 'model.pt')!r}, weights_only=False)\n"
         "print(tuple(model(torch.ones(2, 4)).shape))"],
        # Where keepstep is not installed torch finds no entry point of it either.
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert loaded.returncode == 0, loaded.stderr
    assert loaded.stdout == "(2, 1)\n"
