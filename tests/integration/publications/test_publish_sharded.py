"""`run.publish` where ranks hold parts of the weights: readers see whole tensors, of committed versions only."""

import hashlib
import os

import pytest
import torch

import keepstep
from fsdp2 import needs_fsdp2
from harness import JOBS, PHASES, assert_survivors_kept_their_process, finish, start
from several_nodes import assert_nothing_is_left
from user_scripts import run_script

pytestmark = needs_fsdp2

UNTIL = 24
NORM = {f"norm.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")}


def digest(tensors):
    text = hashlib.sha256()
    for _, tensor in sorted(tensors.items()):
        text.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return text.hexdigest()


def follow(folder, kind, *arguments, world=2, spares=0, inject=(), until=UNTIL):
    """A job of this kind and what a reader saw of it, by step: digests of the weights."""
    name = f"sharded-{folder.name}-{os.getpid()}"
    options = ["--rdzv-id", name, *(part for text in inject for part in ("--inject", text))]
    process, words = start(
        folder, JOBS / "sharded.py", "--out", folder, "--until", until, "--kind", kind, "--publish", 1, *arguments,
        world=world, spares=spares, options=options,
    )  # fmt: skip
    seen = {}
    with keepstep.subscribe("weights", name) as weights:
        for version in weights:
            assert version.tensors["last.weight"].shape == (5, 48) and version.tensors.keys() >= NORM
            seen[version.step] = digest(version.tensors)
    job = finish(folder, process, words)
    assert job.exit_code == 0, job.explain()
    return job, seen


def assert_whole_and_committed(job, seen, at_least):
    truth = {}
    for line in job.notes:
        if "weights" in line and line["rank"] == 0:
            assert truth.setdefault(line["weights"], line["digest"]) == line["digest"], line
    del seen[0]
    assert len(seen) >= at_least and list(seen) == sorted(seen), sorted(seen)
    assert seen == {step: truth[step] for step in seen}, job.explain()
    assert_nothing_is_left(str(job.folder))


def test_readers_see_whole_tensors_while_every_rank_is_killed(tmp_path):
    kills = [f"kill:rank={i % 2},step={3 + 3 * i},phase={phase}" for i, phase in enumerate(PHASES)]
    job, seen = follow(tmp_path, "fsdp", "--sleep", "0.02", spares=1, inject=kills)
    assert len(job.events("fault_detected")) == len(kills), job.explain()
    assert_whole_and_committed(job, seen, 12)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_version_that_a_death_interrupted_is_gathered_once_more(tmp_path, rank):
    job, seen = follow(tmp_path, "fsdp", "--dies-gathering", rank, 5, "--sleep", "0.2", spares=1, until=8)
    assert len(job.events("fault_detected")) == 1 and 5 in seen, job.explain()
    assert_survivors_kept_their_process(job, [rank], 2)
    assert_whole_and_committed(job, seen, 7)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["hsdp", "tp", "zero"])
def test_other_ways_to_divide_weights(tmp_path, kind):
    kills = [f"kill:rank={i % 4},step={3 + 3 * i},phase={phase}" for i, phase in enumerate(PHASES)]
    job, seen = follow(tmp_path, kind, "--sleep", "0.02", world=4, spares=1, inject=kills)
    assert_whole_and_committed(job, seen, 12)


def test_what_is_divided_without_dtensors_is_refused(tmp_path):
    """As with Megatron's tensor parallelism: names and shapes do not tell."""
    body = """
def build(run):
    model = torch.nn.Linear(4, 4)
    torch.nn.init.constant_(model.weight, run.rank)
    return keepstep.State(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
@keepstep.recoverable
def train(run):
    state = run.setup(lambda: build(run), sharded=True)
    run.publish("weights", every_steps=1)
    for step in run.steps(Data(), global_batch=4, micro_batch=2, last_step=3):
        for x in step:
            step.backward(state.model(x).square().mean())
        step.commit(state.optimizer.step)
train()
"""
    job = run_script(tmp_path, body)
    assert job.exit_code == 1, job.explain()
    assert "run.publish('weights'): rank 1 would publish other tensors than rank 0" in job.output, job.explain()
