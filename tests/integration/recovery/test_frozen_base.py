"""A frozen base is built by every process: recovery and checkpoints carry only what is trained."""

import re

import pytest

from fsdp2 import needs_fsdp2
from harness import JOBS, finish, start

TRAINED = 2 * 512 * 4 * 3  # two adapters, and two moments of each
AVERAGE = 512 * 4
SMALL = 4096  # step counters, and the like
KILLS = ["kill:rank=1,step=4,phase=backward", "kill:rank=0,step=9,phase=update"]


def run_adapted(folder, *words, inject=(), world=2):
    injected = [part for text in inject for part in ("--inject", text)]
    process, command = start(
        folder, JOBS / "adapted.py", "--out", folder, *words, world=world, spares=1 if inject else 0, options=injected
    )  # fmt: skip
    return finish(folder, process, command)


def bits(job):
    return [(line["step"], line["bits"]) for line in job.metrics]


def finals(job):
    return {note["rank"]: note["final"] for note in job.notes if "final" in note}


@pytest.mark.parametrize(
    "base", ["kept", *(pytest.param(base, marks=pytest.mark.long) for base in ("averaged", "averaged through data"))]
)
def test_a_replacement_gets_only_what_is_trained_and_the_bits_are_the_same(tmp_path, base):
    """Also an average inside the model, which needs no gradient and yet changes."""
    reference = run_adapted(tmp_path / "undisturbed", "--base", base)
    job = run_adapted(tmp_path / "killed", "--base", base, inject=KILLS)
    assert (job.exit_code, reference.exit_code) == (0, 0), job.explain()
    assert bits(job) == bits(reference) and len(bits(job)) == 12, job.explain()
    assert finals(job) == finals(reference), job.explain()
    sent = [line["bytes"] for line in job.events("hydrated") if line["bytes"]]
    least = TRAINED + (0 if base == "kept" else AVERAGE)
    assert len(sent) == 2 and all(least <= size < least + SMALL for size in sent), (sent, job.explain())


@pytest.mark.parametrize(
    "base", ["averaged", *(pytest.param(base, marks=pytest.mark.long) for base in ("kept", "averaged through data"))]
)
def test_copies_in_memory_have_the_adapters_and_all_ranks_may_die(tmp_path, base):
    reference = run_adapted(tmp_path / "undisturbed", "--base", base)
    both = [f"kill:rank={rank},step=6,phase=backward" for rank in (0, 1)]
    job = run_adapted(tmp_path / "killed", "--base", base, "--memory", "--saves", tmp_path / "saves", inject=both)
    assert (job.exit_code, reference.exit_code) == (0, 0), job.explain()
    assert bits(job) == bits(reference) and len(bits(job)) == 12, job.explain()
    assert finals(job) == finals(reference), job.explain()
    least = TRAINED + (0 if base == "kept" else AVERAGE)
    copied = [note["copied"] for note in job.notes if "copied" in note]
    assert len(copied) == 2 and all(least <= size < least + SMALL for size in copied), (copied, job.explain())


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("--shard",), marks=needs_fsdp2),
        pytest.param(("--memory", "--saves", "saves"), marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("phase", ["update", pytest.param("after_vote", marks=pytest.mark.long)])
def test_a_step_that_changes_the_base_and_is_taken_back_changes_it_once(tmp_path, words, phase):
    """No copy has the base as it was before: a survivor that has changed it is replaced, too."""
    words = ["--base", "scaled at step 5", *words]
    words = [tmp_path / word if word == "saves" else word for word in words]
    reference = run_adapted(tmp_path / "undisturbed", "--base", "scaled at step 5", *words[2:3])
    job = run_adapted(tmp_path / "killed", *words, inject=[f"kill:rank=1,step=5,phase={phase}"])
    assert (job.exit_code, reference.exit_code) == (0, 0), job.explain()
    assert bits(job) == bits(reference) and len(bits(job)) == 12, job.explain()
    assert finals(job) == finals(reference), job.explain()


@needs_fsdp2
@pytest.mark.long
def test_all_ranks_protect_a_base_that_one_of_them_changes(tmp_path):
    """So that a checkpoint is whole."""
    words = ["--shard", "--base", "a row through data", "--saves"]
    reference = run_adapted(tmp_path / "undisturbed", *words, tmp_path / "whole")
    first = run_adapted(tmp_path / "first", *words, tmp_path / "saves", "--until", 8, inject=KILLS[:1])
    second = run_adapted(tmp_path / "second", *words, tmp_path / "saves")
    assert (reference.exit_code, first.exit_code, second.exit_code) == (0, 0, 0), first.explain()
    assert bits(first) + bits(second) == bits(reference) and finals(second) == finals(reference), second.explain()


@needs_fsdp2
@pytest.mark.parametrize("base", ["kept", pytest.param("averaged", marks=pytest.mark.long)])
def test_under_fsdp2_only_the_adapters_are_copied(tmp_path, base):
    """Each rank holds a part of the base, and builds it again."""
    words = ["--shard", "--base", base]
    both = [f"kill:rank={rank},step=9,phase=backward" for rank in (0, 1)]
    reference = run_adapted(tmp_path / "undisturbed", *words)
    job = run_adapted(tmp_path / "killed", *words, inject=["kill:rank=1,step=4,phase=update", *both])
    assert (job.exit_code, reference.exit_code) == (0, 0), job.explain()
    assert bits(job) == bits(reference) and len(bits(job)) == 12, job.explain()
    assert finals(job) == finals(reference), job.explain()
    copied = sum(note["copied"] for note in job.notes if "copied" in note)
    least = TRAINED + (0 if base == "kept" else AVERAGE)
    assert least <= copied < least + SMALL, (copied, job.explain())


@pytest.mark.parametrize("words", [(), pytest.param(("--shard",), marks=needs_fsdp2)])
def test_a_base_that_differs_between_ranks_is_named(tmp_path, words):
    """Parts of it differ anyway, so there a replacement finds it."""
    job = run_adapted(tmp_path, "--base", "differs", *words, inject=KILLS[:1] if words else ())
    assert job.exit_code == 1, job.explain()
    assert re.search(r"the frozen parameter 'model/base.weight' has other values here", job.output), job.explain()


@pytest.mark.long
@pytest.mark.parametrize("words", [(), pytest.param(("--shard",), marks=needs_fsdp2)])
def test_a_checkpoint_has_the_adapters_and_knows_its_base(tmp_path, words):
    reference = run_adapted(tmp_path / "undisturbed", *words)
    saves = tmp_path / "saves"
    first = run_adapted(tmp_path / "first", *words, "--saves", saves, "--until", 8)
    second = run_adapted(tmp_path / "second", *words, "--saves", saves)
    assert (first.exit_code, second.exit_code) == (0, 0), f"{first.explain()}{second.explain()}"
    assert bits(first) + bits(second) == bits(reference), second.explain()
    assert finals(second) == finals(reference)
    largest = max(path.stat().st_size for path in saves.rglob("*") if path.is_file())
    assert largest < 512 * 512 * 4 / 10, "the base was saved"
    more = run_adapted(tmp_path / "more", *words, "--saves", saves, "--until", 16, world=4)
    assert more.exit_code == 0 and [step for step, _ in bits(more)] == [13, 14, 15, 16], more.explain()
    other = run_adapted(tmp_path / "other", *words, "--saves", saves, "--until", 20, "--base", "differs", world=4)
    assert other.exit_code == 1 and "or in the checkpoint" in other.output, other.explain()
