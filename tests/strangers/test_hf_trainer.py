"""Hugging Face's Trainer, made recoverable: ranks are killed in each phase of a step, and in each callback behind it.

What callbacks are told, what is logged, and the final weights equal those of an undisturbed job; no survivor dies.
"""

import json

import pytest
from killer import SCRIPTS

from harness import PHASES, finish, json_lines, start

pytestmark = pytest.mark.long

WORLD = 4
UNTIL = 14  # more than two epochs of 3 steps
KILL_AT = 9  # evaluated at 4 and 8, saved at 6 and 12
EVENTS = [
    "on_step_begin", "on_optimizer_step", "on_step_end", "on_log", "on_prediction_step", "on_evaluate", "on_save",
    "on_epoch_end",
]  # fmt: skip
TIMES = ("t", "mono", "committed_mono")


def run_trainer(folder, *arguments, spares=1, inject=(), world=WORLD):
    options = [part for text in inject for part in ("--inject", text)]
    process, command = start(
        folder, SCRIPTS / "hf_recoverable.py", "--out", folder, "--until", UNTIL, *arguments, world=world,
        spares=spares, options=options,
    )  # fmt: skip
    return finish(folder, process, command)


def without_times(line):
    return {
        key: value
        for key, value in line.items()
        if key not in TIMES and not key.startswith("data_waits") and "runtime" not in key and "per_second" not in key
    }


def left_by(job):
    """What has to be the same, whatever happened."""
    assert job.exit_code == 0, job.explain()
    return {
        "logged": [without_times(line) for line in job.metrics],
        "told": json_lines(job.folder / "told.jsonl"),
        "history": [without_times(entry) for entry in json.loads((job.folder / "losses.json").read_text())],
        "final": [json.loads((job.folder / f"final.{rank}").read_text()) for rank in range(WORLD)],
        "saved": sorted(path.name for path in (job.folder / "checkpoints").iterdir()),
    }


def assert_only_this_rank_has_another_process(job, rank):
    first, *_, last = [line["workers"] for line in job.events("generation_prepared")]
    assert [before == after for before, after in zip(first, last, strict=True)] == [r != rank for r in range(WORLD)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    left = left_by(run_trainer(tmp_path_factory.mktemp("undisturbed"), spares=0))
    told = [line["event"] for line in left["told"]]
    assert [line["step"] for line in left["logged"]] == list(range(1, UNTIL + 1))
    assert {event: told.count(event) for event in set(told)} == {
        "step": UNTIL, "log": UNTIL + UNTIL // 4 + 2, "evaluate": UNTIL // 4 + 1, "save": UNTIL // 6 + 1, "epoch": 5,
    }, told  # fmt: skip
    return left


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("rank", range(WORLD))
def test_a_rank_killed_in_a_step_changes_nothing(undisturbed, tmp_path, rank, phase):
    job = run_trainer(tmp_path, inject=[f"kill:rank={rank},step={KILL_AT},phase={phase}"])
    assert left_by(job) == undisturbed, job.explain()
    assert_only_this_rank_has_another_process(job, rank)


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_killed_behind_a_step_changes_nothing(undisturbed, tmp_path, rank, event):
    """The step's end is replayed: what was evaluated, logged and saved by then is not told again."""
    job = run_trainer(tmp_path, "--die", f"{rank}:{event}:12")
    assert (tmp_path / "died").exists(), job.explain()
    assert left_by(job) == undisturbed, job.explain()
    assert_only_this_rank_has_another_process(job, rank)
