"""Training loops of other libraries: ranks are killed in each phase of a step, and in what is done between two steps.

What callbacks are told, what is logged, and the final weights equal those of an undisturbed job; no survivor dies.
"""

import itertools
import json
import os
from collections import Counter

import pytest
from killer import SCRIPTS, TIMES, Watched

import keepstep
from elastic_jobs import Elastic
from harness import PHASES, finish, json_lines, start
from published import digest_of

WORLD = 4
KILL_AT = 9
# What ranks are killed in, with its number, and what rank 0 is told of in all.
LIBRARIES = {
    "hf_recoverable": (  # 3 steps in an epoch; evaluated after each 4th, saved after each 6th
        14,
        ["on_step_begin:12", "on_optimizer_step:11", "on_step_end:12", "on_log:12", "on_prediction_step:12",
         "on_evaluate:12", "on_save:12", "on_epoch_end:12"],
        {"step": 14, "log": 14 + 4 + 1, "evaluate": 4, "save": 3, "epoch": 5},
    ),
    "accelerate_loop": (9, ["evaluate:1", "evaluate:2"], {"evaluated": 3}),
    "lightning_fit": (  # 6 batches and 3 steps in an epoch; validated after each 4th of its batches
        14,
        ["on_train_batch_start:8", "on_before_zero_grad:8", "on_before_optimizer_step:8", "on_train_batch_end:8",
         "on_validation_start:8", "on_validation_batch_end:8", "on_validation_end:8", "on_train_epoch_end:9",
         "on_train_epoch_start:9", "on_train_end:14"],
        {"batch": 4 * 6 + 4, "validated": 5, "epoch": 5, "end": 1},
    ),
    "lightning_sharded": (  # as lightning_fit, over FSDP2
        14,
        ["on_train_batch_end:8", "on_validation_end:8", "on_train_epoch_end:9"],
        {"batch": 4 * 6 + 4, "validated": 5, "epoch": 5, "end": 1},
    ),
    "fabric_loop": (15, ["evaluate:1", "logged:2", "saved:2"], {"log": 5 * 7}),  # 6 batches and 3 steps in an epoch
}  # fmt: skip
BETWEEN = [(library, event) for library, (_, events, _) in LIBRARIES.items() for event in events]


def run_library(library, folder, *arguments, spares=1, inject=(), until=None):
    options = [part for text in inject for part in ("--inject", text)]
    until = LIBRARIES[library][0] if until is None else until
    process, command = start(
        folder, SCRIPTS / f"{library}.py", "--out", folder, "--until", until, *arguments, world=WORLD, spares=spares,
        options=options,
    )  # fmt: skip
    return finish(folder, process, command)


def without_times(line):
    return {
        key: value
        for key, value in line.items()
        if key not in TIMES
        and not key.startswith("data_waits")
        and not any(word in key for word in ("runtime", "per_second", "step_time"))
    }


def left_by(job):
    """What has to be the same, whatever happened."""
    assert job.exit_code == 0, job.explain()
    losses = job.folder / "losses.json"
    return {
        "logged": [without_times(line) for line in job.metrics],
        "told": json_lines(job.folder / "told.jsonl"),
        "history": [without_times(entry) for entry in json.loads(losses.read_text())] if losses.exists() else [],
        "final": [json.loads((job.folder / f"final.{rank}").read_text()) for rank in range(WORLD)],
        "saved": sorted(path.name for path in job.folder.glob("checkpoints/*")),
    }


def assert_same_as(undisturbed, job):
    left = left_by(job)
    first = {
        name: next(pair for pair in itertools.zip_longest(left[name], wanted) if pair[0] != pair[1])
        for name, wanted in undisturbed.items()
        if left[name] != wanted
    }
    assert not first, f"the first that differs, and what it should be: {first}\n{job.explain()}"


def assert_only_this_rank_has_another_process(job, rank):
    first, *_, last = [line["workers"] for line in job.events("generation_prepared")]
    assert [before == after for before, after in zip(first, last, strict=True)] == [r != rank for r in range(WORLD)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    known = {}

    def get(library):
        if library not in known:
            left = left_by(run_library(library, tmp_path_factory.mktemp(library), spares=0))
            steps, _, told = LIBRARIES[library]
            assert [line["step"] for line in left["logged"]] == list(range(1, steps + 1))
            assert Counter(line["event"] for line in left["told"]) == told
            known[library] = left
        return known[library]

    return get


def in_a_step():
    """Three of them in every `make test`, where the next test kills ranks with Accelerate."""
    for library, rank, phase in itertools.product(LIBRARIES, range(WORLD), PHASES):
        often = (rank, phase) == (1, "backward") and library in ("hf_recoverable", "lightning_fit", "fabric_loop")
        yield pytest.param(library, rank, phase, marks=() if often else (pytest.mark.long,))


@pytest.mark.parametrize(("library", "rank", "phase"), list(in_a_step()))
def test_a_rank_killed_in_a_step_changes_nothing(undisturbed, tmp_path, library, rank, phase):
    step = min(KILL_AT, LIBRARIES[library][0] - (phase == "between"))
    job = run_library(library, tmp_path, inject=[f"kill:rank={rank},step={step},phase={phase}"])
    assert_same_as(undisturbed(library), job)
    assert_only_this_rank_has_another_process(job, rank)


@pytest.mark.parametrize(
    "library",
    [
        "accelerate_loop",
        *(pytest.param(name, marks=pytest.mark.long) for name in LIBRARIES if name != "accelerate_loop"),
    ],
)
def test_a_process_forked_with_the_library_imported_takes_a_rank(undisturbed, tmp_path, library):
    """The zygote has imported this integration, too, and has no rank and no session."""
    words = ["--until", LIBRARIES[library][0], "--sleep", 1.5]
    job = Watched(tmp_path, f"{library}.py", *words, world=WORLD, spares=1)
    first_spare = WORLD

    def is_parked(worker):
        return any(line["worker"] >= worker for line in job.events("parked"))

    assert job.wait_until(lambda: job.events("preloaded") and is_parked(first_spare)), job.finish().explain()
    job.kill(3)
    assert job.wait_until(lambda: is_parked(first_spare + 1)), job.finish().explain()
    job.kill(3)
    done = job.finish().job
    assert {line["worker"]: line["how"] for line in done.events("spawned")}[first_spare + 1] == "fork"
    assert len(done.events("fault_detected")) == 2, done.explain()
    assert_same_as(undisturbed(library), done)


@pytest.mark.long
@pytest.mark.parametrize(("library", "event"), BETWEEN)
@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_killed_between_steps_changes_nothing(undisturbed, tmp_path, library, rank, event):
    """What was evaluated, logged and saved by then is not told again; what was interrupted is done again."""
    job = run_library(library, tmp_path, "--die", f"{rank}:{event}")
    assert (tmp_path / "died").exists(), job.explain()
    assert_same_as(undisturbed(library), job)
    assert_only_this_rank_has_another_process(job, rank)


SIZES = {
    **{library: (library, 48) for library in ("hf_recoverable", "accelerate_loop", "lightning_fit", "fabric_loop")},
    **{f"trl {case}": ("trl_trainers", 24, "--case", case) for case in ("sft", "dpo")},
}


@pytest.mark.long
@pytest.mark.parametrize("case", SIZES)
def test_the_world_changes_and_what_is_told_does_not(tmp_path, case):
    """2, 1, 4, 3, 2 ranks, with a kill and a lost node: losses, rates and evaluations are the same within rounding."""
    library, batch, *words = SIZES[case]
    words += ["--global-batch", batch, "--until", 1000]
    script = SCRIPTS / f"{library}.py"
    with Elastic(tmp_path / "elastic", *words, "--sleep", 0.1, script=script) as job:
        job.shrink_grow_and_lose_a_rank()
        job.scale(3)
        job.wait_for_world(3)
        job.lose(1)
        job.wait_for_world(2)
        done = job.stop()
    assert {line["to"] for line in done.events("resized")} == {1, 2, 3, 4}
    told = json_lines(tmp_path / "elastic" / "told.jsonl")
    assert len(told) > 5
    with Elastic(tmp_path / "fixed", *words, script=script) as reference:
        reference.start(0)
        expected = tmp_path / "fixed" / "told.jsonl"
        reference.first.wait_for(
            lambda: expected.exists() and len(json_lines(expected)) >= len(told), "as many lines", 300
        )
        reference.stop()
    for mine, theirs in zip(told, json_lines(expected), strict=False):
        assert mine.pop("event") == theirs.pop("event")
        assert mine.pop("seen", 0) <= theirs.pop("seen", 0)  # by an epoch's metrics; ranks that left took theirs along
        assert mine == pytest.approx(theirs, rel=2e-3)


EVALUATED = {
    "hf_recoverable": [2, 6, 10],
    "accelerate_loop": [3, 6],
    "lightning_fit": [3, 6, 12],
    "fabric_loop": [3, 9],
}


@pytest.mark.long
@pytest.mark.parametrize("library", EVALUATED)
def test_a_rate_that_follows_a_metric_falls_with_the_same_step(tmp_path, library):
    """It falls by half after each evaluation; ranks die in the steps behind some, which it falls with."""
    reference = left_by(run_library(library, tmp_path / "undisturbed", "--case", "plateau", spares=0))
    lines = [*reference["logged"], *reference["told"]]
    rates = {line[key] for line in lines for key in ("rate", "learning_rate") if key in line}
    assert sorted(rates, reverse=True) == [max(rates) * 0.5**falls for falls in range(len(rates))]
    assert len(rates) >= 3
    deaths = zip([0, 2, 1], EVALUATED[library], ["backward", "after_vote", "forward"], strict=False)
    inject = [f"kill:rank={rank},step={evaluated + 1},phase={phase}" for rank, evaluated, phase in deaths]
    job = run_library(library, tmp_path / "killed", "--case", "plateau", inject=inject)
    assert_same_as(reference, job)
    assert len(job.events("fault_detected")) == len(inject)


TWICE = ["kill:rank=0,step=4,phase=backward", "kill:rank=3,step=5,phase=after_vote"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("library", "case"),
    [
        ("hf_recoverable", "stops early"),  # and loads its best model
        ("lightning_fit", "stops early"),
        ("lightning_fit", "limited"),
        ("lightning_fit", "manual"),
        ("lightning_fit", "ring"),
        ("fabric_loop", "uneven"),  # steps take batches of two epochs
        ("fabric_loop", "bf16"),
    ],
)
def test_two_deaths_change_nothing_in_other_cases(tmp_path, library, case):
    words = ["--case", case]
    reference = left_by(run_library(library, tmp_path / "undisturbed", *words, spares=0))
    steps = [line["step"] for line in reference["logged"]]
    shorter = {"hf_recoverable stops early": 6, "lightning_fit stops early": 7, "fabric_loop uneven": 5}
    assert steps[-1] == shorter.get(f"{library} {case}", LIBRARIES[library][0])
    job = run_library(library, tmp_path / "killed", *words, inject=TWICE)
    assert_same_as(reference, job)


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 3])
def test_a_rank_killed_in_the_second_epoch_of_a_step_changes_nothing(tmp_path, rank):
    """Its first batches are of an epoch that is over, evaluated and saved. They are used again, and told once."""
    words = ["--case", "uneven"]
    reference = left_by(run_library("fabric_loop", tmp_path / "undisturbed", *words, spares=0))
    job = run_library("fabric_loop", tmp_path / "killed", *words, "--die", f"{rank}:batch:31")
    assert (tmp_path / "killed" / "died").exists(), job.explain()
    assert_same_as(reference, job)


@pytest.mark.long
@pytest.mark.parametrize("case", ["sft", "dpo", "grpo", "grpo buffered"])
@pytest.mark.parametrize("rank", [0, 3])
def test_trainers_of_trl_lose_nothing_that_they_log(tmp_path, case, rank):
    """Metrics that are not logged yet, counters and generated batches are each rank's own."""
    words = ["--case", case]
    reference = left_by(run_library("trl_trainers", tmp_path / "undisturbed", *words, spares=0, until=10))
    assert "num_tokens" in reference["history"][0] and "checkpoint-6" in reference["saved"]
    deaths = [f"kill:rank={rank},step={step},phase={phase}" for step, phase in enumerate(PHASES, 3)]
    job = run_library("trl_trainers", tmp_path / "killed", *words, inject=deaths, until=10)
    assert_same_as(reference, job)
    assert_only_this_rank_has_another_process(job, rank)


@pytest.mark.long
@pytest.mark.parametrize(
    ("library", "saved", "case"),
    [
        ("hf_recoverable", 6, "resumes"),
        ("lightning_fit", 8, "resumes"),
        ("lightning_fit", 8, "background resumes"),
        ("fabric_loop", 6, "resumes"),
        ("hf_recoverable", 6, "plateau"),
        ("fabric_loop", 6, "plateau"),
    ],
)
def test_a_trainer_goes_on_from_its_own_checkpoint(tmp_path, library, saved, case):
    """Lightning's is saved in the middle of an epoch. One rank dies before the first step after it."""
    words = ["--case", case]
    reference = left_by(run_library(library, tmp_path / "undisturbed", *words, spares=0))
    saves = ["--saves", tmp_path / "saves"]
    first = left_by(run_library(library, tmp_path / "first", *words, *saves, spares=0, until=saved))
    deaths = ["kill:rank=0,step=1,phase=backward", *TWICE]
    second = run_library(library, tmp_path / "second", *words, *saves, inject=deaths)
    left = left_by(second)
    losses = [[line["loss"] for line in each["told"] if "loss" in line and line["event"] in ("log", "batch")]
              for each in (first, left, reference)]  # fmt: skip
    assert losses[0] + losses[1] == losses[2], second.explain()
    assert left["final"] == reference["final"], second.explain()


@pytest.mark.long
@pytest.mark.parametrize(("library", "ended"), [("hf_recoverable", 9), ("lightning_fit", 9), ("fabric_loop", 9)])
def test_a_job_that_ended_goes_on_from_what_keepstep_saved(tmp_path, library, ended):
    """Lightning's ends in the middle of an epoch. One rank dies before the first step after it."""
    words = ["--case", "resumes"]
    reference = left_by(run_library(library, tmp_path / "undisturbed", *words, spares=0))
    keeps = ["--keeps", tmp_path / "keeps"]
    assert run_library(library, tmp_path / "first", *words, *keeps, spares=0, until=ended).exit_code == 0
    kill = f"kill:rank=0,step={ended + 1},phase=backward"
    job = run_library(library, tmp_path / "second", *words, *keeps, inject=[kill])
    left = left_by(job)
    assert [line for line in left["logged"] if line["step"] > ended] == reference["logged"][ended:], job.explain()
    assert left["final"] == reference["final"], job.explain()


@pytest.mark.long
@pytest.mark.parametrize(
    "library", ["hf_recoverable", "accelerate_loop", "lightning_fit", "fabric_loop", "lightning_sharded", "titan_train"]
)
def test_readers_of_its_weights_see_what_it_committed(tmp_path, library):
    def versions(name, inject, spares):
        found = {}
        name = f"{name}-{os.getpid()}"
        words = ["--out", tmp_path / name, "--until", 14, "--publish", "weights", "--sleep", 0.05]
        process, command = start(
            tmp_path / name, SCRIPTS / f"{library}.py", *words, spares=spares,
            options=["--rdzv-id", name, *(part for text in inject for part in ("--inject", text))],
        )  # fmt: skip
        with keepstep.subscribe("weights", name) as weights:
            for version in weights:
                found[version.step] = digest_of(version.tensors)
        job = finish(tmp_path / name, process, command)
        assert job.exit_code == 0, job.explain()
        return found

    kills = ["kill:rank=0,step=4,phase=backward", "kill:rank=1,step=6,phase=after_vote"]
    expected, seen = versions("undisturbed", [], 0), versions("killed", kills, 1)
    both = expected.keys() & seen.keys()
    assert len({expected[step] for step in both}) > 3
    assert {step: seen[step] for step in both} == {step: expected[step] for step in both}


@pytest.mark.long
def test_a_lightning_checkpoint_of_two_ranks_begins_with_four(tmp_path):
    """It is saved in the middle of an epoch, after 8 of its 10 steps."""

    def steps_of(name, saves, ranks, until):
        words = ["--out", tmp_path / name, "--until", until, "--global-batch", 48, "--saves", tmp_path / saves]
        process, command = start(tmp_path / name, SCRIPTS / "lightning_fit.py", *words, world=ranks)
        job = finish(tmp_path / name, process, command)
        assert job.exit_code == 0, job.explain()
        told = [line for line in json_lines(tmp_path / name / "told.jsonl") if line.pop("event") == "step"]
        return [line | {"loss": logged["loss"]} for line, logged in zip(told, job.metrics, strict=True)]

    whole = steps_of("whole", "whole", 4, 14)
    parts = [*steps_of("first", "saves", 2, 8), *steps_of("second", "saves", 4, 14)]
    for mine, theirs in zip(parts, whole, strict=True):
        assert mine == pytest.approx(theirs, rel=2e-3)


@pytest.mark.long
def test_a_second_fit_goes_on_where_the_first_one_ended(tmp_path):
    """30 steps in each; validated after every 8th, over all epochs."""
    words = ["--out", tmp_path, "--until", 60, "--global-batch", 48, "--case", "fits twice"]
    process, command = start(tmp_path, SCRIPTS / "lightning_fit.py", *words, world=2)
    job = finish(tmp_path, process, command)
    assert job.exit_code == 0, job.explain()
    told = [line for line in json_lines(tmp_path / "told.jsonl") if line["event"] == "validated"]
    assert [line["step"] for line in told] == list(range(8, 60, 8)), job.explain()


@pytest.mark.long
def test_a_trainer_of_adapters_sends_only_these(tmp_path):
    words = ["--case", "lora"]
    reference = left_by(run_library("hf_recoverable", tmp_path / "undisturbed", *words, spares=0))
    job = run_library("hf_recoverable", tmp_path / "killed", *words, inject=TWICE)
    assert_same_as(reference, job)
    sent = [line["bytes"] for line in job.events("hydrated") if line["bytes"]]
    assert len(sent) == 2 and max(sent) < 40_000, sent  # 2 layers x 2 projections x 2 x 64 x 4 bytes, three times


@pytest.mark.long
@pytest.mark.parametrize("library", ["hf_recoverable", "lightning_fit"])
def test_a_trainer_evaluates_after_training_although_a_rank_died_in_between(tmp_path, library):
    words = ["--case", "evaluates after"]
    reference = left_by(run_library(library, tmp_path / "undisturbed", *words, spares=0))
    assert "predicted" in reference["history"][-1]
    job = run_library(library, tmp_path / "killed", *words, "--die", "2:after:0")
    assert (tmp_path / "killed" / "died").exists(), job.explain()
    assert_same_as(reference, job)
