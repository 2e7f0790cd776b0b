"""`keepstep.data.cached`: every sample once in committed steps, whoever is killed, at any number of ranks."""

import os
import random
import subprocess
import time
from pathlib import Path

import pytest

from elastic_jobs import Elastic
from harness import JOBS, PYTHON, finish, json_lines, samples, start
from several_nodes import assert_nothing_is_left

UNTIL, SAMPLES, GLOBAL_BATCH = 12, 40, 8
SCRIPT = JOBS / "cached_batches.py"


def run_cached(folder, *extra, world=2, spares=0, inject=(), until=UNTIL):
    folder.mkdir(parents=True, exist_ok=True)
    options = [part for text in inject for part in ("--inject", text)]
    process, command = start(
        folder, SCRIPT, "--out", folder, "--until", until, *extra, world=world, spares=spares, options=options
    )
    return finish(folder, process, command)


@pytest.fixture(scope="session")
def undisturbed_job(tmp_path_factory):
    """One rank, nobody is killed."""
    job = run_cached(tmp_path_factory.mktemp("cached-undisturbed"), world=1)
    assert job.exit_code == 0, job.explain()
    return job


@pytest.fixture(scope="session")
def stream(undisturbed_job):
    """What each step of the undisturbed job uses."""
    return samples(undisturbed_job)


@pytest.fixture(scope="session")
def undisturbed_noise(undisturbed_job):
    return noise(undisturbed_job)


def noise(job):
    """The random numbers of the batches each committed step used, in their order."""
    ranks = sorted(int(name.removeprefix("noise_")) for name in job.metrics[0] if name.startswith("noise_"))
    return [[each for rank in ranks for each in line[f"noise_{rank}"]] for line in job.metrics]


def assert_exactly_once(job, stream):
    assert job.exit_code == 0, job.explain()
    assert [line["step"] for line in job.metrics] == list(range(1, UNTIL + 1)), job.explain()
    assert samples(job) == stream, job.explain()


def test_an_epoch_has_every_sample_once_and_the_next_one_another_order(stream):
    used = [sample for step in stream for sample in step]
    first, second = used[:SAMPLES], used[SAMPLES : 2 * SAMPLES]
    assert sorted(first) == sorted(second) == list(range(SAMPLES))
    assert first != second and first != sorted(first)
    assert all(len(step) == GLOBAL_BATCH for step in stream)


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.long)])
def test_the_stream_is_the_same_at_every_world_size_and_one_process_loads(stream, tmp_path, world):
    job = run_cached(tmp_path, "--workers", 1, world=world)
    assert_exactly_once(job, stream)
    assert len(job.events("loader_started")) == 1, job.explain()


def test_a_killed_worker_of_a_dataloader_is_a_fault_and_no_error(stream, tmp_path):
    job = run_cached(tmp_path, "--workers", 2, "--kill-loading", 5, 33)
    assert_exactly_once(job, stream)
    assert [line["because"].split(" ", 2)[2] for line in job.events("loader_ended")] == ["exited with code 1"] * 2


def test_killed_loader_and_ranks_lose_nothing_and_repeat_nothing(stream, undisturbed_noise, tmp_path):
    """Loader killed from outside and while it loads; ranks killed at two places; ranks write into their batches."""
    job = run_cached(
        tmp_path, "--kill-loader", 3, "--kill-loading", 5, 33, "--spoil", world=2, spares=1,
        inject=["kill:rank=1,step=5,phase=before_vote", "kill:rank=0,step=8,phase=backward"],
    )  # fmt: skip
    assert_exactly_once(job, stream)
    assert noise(job) == undisturbed_noise
    assert 2 <= len(job.events("loader_ended")) <= 3, job.explain()
    assert "killed by signal 9" in job.events("loader_ended")[0]["because"]
    assert [line["rank"] for line in job.events("injected")] == [1, 0], job.explain()


@pytest.mark.long
@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("seed", range(4))
def test_random_kills(stream, tmp_path, world, seed):
    """Repeat with -k 'random_kills and SEED-WORLD'."""
    rng = random.Random(seed * 10 + world)
    phases = ["forward", "backward", "before_vote", "after_vote", "update", "between"]
    faults = [
        f"kill:rank={rng.randrange(world)},step={step},phase={rng.choice(phases)}"
        for step in rng.sample(range(2, UNTIL), 2)
    ]
    extra = ["--kill-loader", *rng.sample(range(1, UNTIL), 2), "--kill-loading", *rng.sample(range(SAMPLES), 2)]
    if seed % 2:
        extra += ["--stateful"]
    job = run_cached(tmp_path, *extra, "--ahead", rng.randrange(1, 4), "--behind", rng.randrange(3),
                     world=world, spares=seed % 2, inject=faults)  # fmt: skip
    if world == 1:
        assert len(job.events("restart")) == 2, job.explain()
    if job.events("restart"):  # nobody was left who had the state: the job began again, and so did its order
        job.metrics = job.metrics[-UNTIL:]
    assert_exactly_once(job, stream)


def test_a_loader_with_a_state_is_resumed_by_it(stream, tmp_path):
    job = run_cached(tmp_path, "--stateful", world=1)
    assert_exactly_once(job, stream)
    assert (tmp_path / "begun.txt").read_text().split()[:3] == ["0", "7", "0"]  # an epoch, its rest, the next one


@pytest.mark.long
def test_torchdatas_loader_is_resumed_by_its_state(tmp_path):
    """The real StatefulDataLoader: a new process reads on where the last one died, and nothing that came before."""
    alone = run_cached(tmp_path / "alone", "--torchdata", world=1)
    order = [sample for step in samples(alone) for sample in step]
    assert sorted(order[:SAMPLES]) == sorted(order[SAMPLES : 2 * SAMPLES]) == list(range(SAMPLES)), alone.explain()
    job = run_cached(
        tmp_path / "killed", "--torchdata", "--kill-loading", order[17], order[30], world=2,
        inject=["kill:rank=1,step=5,phase=backward"],
    )  # fmt: skip
    assert [sample for step in samples(job) for sample in step] == order, job.explain()
    assert noise(job) == noise(alone), "a loader's random numbers go with its state"
    assert len(job.events("loader_ended")) == 2, job.explain()
    read = [int(line) for line in (tmp_path / "killed" / "read.txt").read_text().split()]
    expected = order[:18] + order[16:31] + order[30:]  # batches of two; the one in which it died is read again
    assert read[: len(expected)] == expected, job.explain()


@pytest.mark.long
def test_torchdatas_loader_with_workers_is_resumed_by_its_state(tmp_path):
    alone = run_cached(tmp_path / "alone", "--torchdata", "--workers", 2, world=1)
    job = run_cached(tmp_path / "killed", "--torchdata", "--workers", 2, "--kill-loader", 3, 8, "--kill-loading", 5)
    assert job.exit_code == 0 and samples(job) == samples(alone), job.explain()
    assert "will run the epoch forward" not in job.output, job.explain()


@pytest.mark.long
def test_within_a_limit_nothing_changes(stream, tmp_path):
    assert_exactly_once(run_cached(tmp_path, "--limit-bytes", 40 * 8192), stream)


def long(*values):
    return pytest.param(*values, marks=pytest.mark.long)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--raise-at", 7], ["the loader raised at batch", "ValueError: sample 7 is broken", "in __getitem__"]),
        long(["--dies"], ["3 loader processes ended one after the other without a new batch", "killed by signal 9"]),
        long(["--limit-bytes", 4096], ["the loader raised at batch", "finds no room within limit_bytes=4096"]),
        long(["--generator"], ["the loader has no batch 40", "an epoch of it was empty"]),
    ],
    ids=["raises", "dies", "no room", "ends"],
)
def test_what_cannot_go_on_is_an_error_that_says_why(tmp_path, extra, words):
    job = run_cached(tmp_path, *extra)
    assert job.exit_code not in (0, None), job.explain()
    assert all(word in job.output for word in words), job.explain()


@pytest.mark.long
def test_ranks_that_an_elastic_job_gave_up_keep_no_batch_from_the_others(stream, tmp_path):
    with Elastic(tmp_path, "--until", 100_000, nodes="1:1", script="cached_batches.py") as job:
        job.start(0)
        job.first.wait_for(job.steps, "a step")
        for size in (1, 2, 1):  # who waits as a spare comes back, and goes again
            mark = job.mark()
            job.scale(size)
            job.wait_for_event("formed", mark)
            job.wait_for_more_steps(20)  # more than the ring holds
        done = job.stop()
    used = samples(done)
    assert used[:UNTIL] == stream, done.explain()
    flat = [sample for step in used for sample in step]
    for begin in range(0, len(flat) - SAMPLES + 1, SAMPLES):
        assert sorted(flat[begin : begin + SAMPLES]) == list(range(SAMPLES)), done.explain()
    assert len(done.events("loader_started")) == 1, done.explain()


# ---- ranks that torchrun started ----


def agents_of(job):
    found = subprocess.run(["pgrep", "-f", f"keepstep node --job .*{job}"], capture_output=True, text=True)
    return found.stdout.split()


def torchrun(folder, world, *extra, options=()):
    name = f"cached-{os.getpid()}-{time.monotonic_ns()}"
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [str(part) for part in (PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", world, "--standalone",
                                *options, SCRIPT, "--plain", "--out", folder, *extra)],
        # torchrun's own store has what ranks of an earlier start told it, and gloo takes it for news.
        env={**os.environ, "KEEPSTEP_JOB": name, "KEEPSTEP_STORE": "1"}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    notes = [note for path in sorted(folder.glob("*.jsonl")) for note in json_lines(path)]
    return done, notes, name


@pytest.mark.long
def test_under_torchrun_ranks_share_a_loader_that_may_die(stream, tmp_path):
    done, notes, name = torchrun(tmp_path, 2, "--samples", 42, "--kill-loader", 4, 24, "--kill-loading", 20)
    assert done.returncode == 0, done.stderr
    used = sorted((n["position"], n["rank"], tuple(n["ids"])) for n in notes if "ids" in n)
    ids = [each for _, _, pair in used for each in pair]
    assert sorted(ids[:42]) == sorted(ids[42:84]) == list(range(42))  # 21 batches an epoch: a round lies in two
    ends = sorted((n["rank"], n["epoch_ended"]) for n in notes if "epoch_ended" in n)
    assert [rank_end for rank, rank_end in ends if rank == 0] == [rank_end for rank, rank_end in ends if rank == 1]
    assert [end for rank, end in ends if rank == 0] == [22, 42]
    deadline = time.monotonic() + 30
    while agents_of(name):  # it ends a moment after its last rank, and the loader with it
        assert time.monotonic() < deadline, "the node's agent outlives its job"
        time.sleep(0.1)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["--torchdata", "--workers=1"])
def test_torchrun_starts_ranks_again_and_nothing_is_repeated_but_by_it(tmp_path, kind):
    """Ranks are killed, so torchrun starts all of them anew from their checkpoint; loaders are killed besides."""
    done, notes, name = torchrun(
        tmp_path, 2, kind, "--save-every", 3, "--kill-rank", 8, 14, "--kill-loader", 4, 20, "--kill-loading", 7,
        options=["--max-restarts", 2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    begins = {(note["start"], note["rank"]): note["begins"] for note in notes if "begins" in note}
    # Three rounds of two batches lie between checkpoints; the kills came in the fourth round of their start.
    assert begins == {("0", 0): 0, ("0", 1): 0, ("1", 0): 6, ("1", 1): 6, ("2", 0): 12, ("2", 1): 12}, done.stderr
    used = {}
    for attempt, last in (("0", 8), ("1", 14), ("2", 40)):
        for rank in range(2):
            mine = [note for note in notes if "ids" in note and (note["start"], note["rank"]) == (attempt, rank)]
            assert [note["position"] for note in mine] == list(range(begins[attempt, rank] + 2, last + 1, 2)), (
                done.stderr
            )
            for note in mine:
                item = note["position"] - 2 + rank
                assert used.setdefault(item, note["ids"]) == note["ids"], f"batch {item} is another one the second time"
    ids = [each for item in range(40) for each in used[item]]
    assert sorted(ids[:SAMPLES]) == sorted(ids[SAMPLES:]) == list(range(SAMPLES))
    assert_nothing_is_left(name)
    pids = {str(pid) for note in notes if "ids" in note for pid in note["pids"]}
    # Torch names a worker's memory for an instant: one that is killed in it leaves the name, and no memory.
    left = [path for path in Path("/dev/shm").iterdir() if pids & set(path.name.replace("-", "_").split("_"))]
    assert not [path for path in left if path.stat().st_blocks], left


@pytest.mark.parametrize(("rounds", "seed"), [(8, 1), long(150, 2)])
def test_a_rank_that_comes_late_where_nothing_keeps_ranks_in_step_reads_its_share(tmp_path, rounds, seed):
    done = subprocess.run(
        [PYTHON, JOBS / "late_ranks.py", "--out", tmp_path, "--rounds", str(rounds), "--seed", str(seed)],
        env={**os.environ, "KEEPSTEP_STORE": "1"}, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_a_checkpoint_goes_on_with_another_number_of_ranks(tmp_path):
    whole, notes, _ = torchrun(tmp_path / "whole", 1)
    assert whole.returncode == 0, whole.stderr
    expected = [
        each for n in sorted((n for n in notes if "ids" in n), key=lambda n: n["position"]) for each in n["ids"]
    ]
    first, _, _ = torchrun(tmp_path / "parts", 2, "--epochs", 1)
    assert first.returncode == 0, first.stderr
    for path in (tmp_path / "parts").glob("*.jsonl"):
        path.unlink()
    second, notes, _ = torchrun(tmp_path / "parts", 4, "--stateful")
    assert second.returncode == 0, second.stderr
    rest = sorted((n["position"], n["rank"], n["ids"]) for n in notes if "ids" in n)
    assert [each for _, _, ids in rest for each in ids] == expected[SAMPLES : 2 * SAMPLES]


def test_an_error_of_the_loader_reaches_every_rank(tmp_path):
    values = {**os.environ, "KEEPSTEP_JOB": f"raises-{os.getpid()}-{time.monotonic_ns()}", "WORLD_SIZE": "3"}
    ranks = [
        subprocess.Popen(
            [PYTHON, SCRIPT, "--plain", "--out", tmp_path, "--raise-at", "7"], env={**values, "RANK": str(rank)},
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(3)
    ]  # fmt: skip
    said = [rank.communicate(timeout=60)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [1, 1, 1], said
    assert all("ValueError: sample 7 is broken" in each and "in __getitem__" in each for each in said), said
