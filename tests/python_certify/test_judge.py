"""What counts as survived, on jobs whose files were written by hand."""

import json
import struct
from pathlib import Path

import pytest

from keepstep.certify import evidence
from keepstep.certify.job import Ran
from keepstep.certify.judge import DID_NOT_HAPPEN, LOST, RESTARTS, SURVIVES, References, judge
from keepstep.certify.trials import Trial

FAULT = "kill:rank=1,step=3,phase=backward"
TRIAL = Trial("kill-backward", "SIGKILL", (FAULT,))
STEPS = 6


class Written:
    """A job's folder, as witness and journal leave it."""

    def __init__(self, folder: Path, *, injected=(FAULT,), exit_code=0, steps=STEPS):
        self.folder, self.exit_code = folder, exit_code
        self.witness = [[], []]
        for step in range(1, steps + 1):
            for rank in (0, 1):
                self.step(step, rank)
        self.journal = [{"event": "job_started", "world_size": 2, "spares": 0, "script": "train.py", "version": "0"}]
        self.journal += [{"event": "injected", "because": fault, "worker": 2} for fault in injected]
        self.output = []

    def step(self, step, rank, *, generation=1, weight="aa", loss=0.5, samples=None):
        samples = [4 * step + 2 * rank, 4 * step + 2 * rank + 1] if samples is None else samples
        who = {"rank": rank, "generation": generation}
        self.witness[rank].append({"computed": step, "samples": samples, **who})
        self.witness[rank].append(
            {
                "committed": step, "loss": struct.pack("<d", loss).hex(), "state": {"model/w": weight},
                "own": {"model/mean": f"{rank}"}, "values": "v", "devices": ["cpu"], **who,
            }
        )  # fmt: skip

    def effect(self, rank, what, of):
        self.witness[rank].append({"effect": what, "of": of, "step": 0, "rehearsing": False})

    def commit(self, step, rank):
        return next(line for line in self.witness[rank] if line.get("committed") == step)

    def ran(self):
        (self.folder / "witness").mkdir(parents=True)
        (self.folder / "run").mkdir()
        for rank, lines in enumerate(self.witness):
            (self.folder / "witness" / f"{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        end = {"event": "job_ended", "exit_code": self.exit_code, "because": "rank 1 gave up"}
        lines = [{"t": 0.1 * i, "mono": 100 + 0.1 * i, **line} for i, line in enumerate([*self.journal, end])]
        (self.folder / "run" / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        metrics = [{"step": step, "mono": 100 + step, "loss": 0.5} for step in range(1, STEPS + 1)]
        (self.folder / "run" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
        (self.folder / "output.txt").write_text("\n".join(self.output))
        return Ran(self.folder, self.exit_code, 1.0, [self.folder / "output.txt"], "keepstep run")


def read(written):
    ran = written.ran()
    return evidence.read(ran.folder, ran.outputs)


@pytest.fixture
def references(tmp_path):
    first, second = Written(tmp_path / "first", injected=()), Written(tmp_path / "second", injected=())
    for each in (first, second):
        each.effect(0, "appends to", "/out/log.csv")
        each.output = ["epoch 1 begins", "keepstep: a line of ours"]
    return References(read(first), read(second))


def test_the_same_bits_mean_survived(tmp_path, references):
    outcome = judge(TRIAL, Written(tmp_path / "job").ran(), references)
    assert (outcome.verdict, outcome.because) == (SURVIVES, "")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("state", {"model/w": "ab"}, "step 4, rank 1: model/w"),
        ("own", {"model/mean": "x"}, "step 4, rank 1: model/mean"),
        ("values", "w", "step 4, rank 1: numbers of the protected state"),
        ("loss", "00", "step 4, rank 1: the loss"),
    ],
)
def test_one_bit_too_few_and_where(tmp_path, references, key, value, said):
    written = Written(tmp_path / "job")
    written.commit(4, 1)[key] = value
    outcome = judge(TRIAL, written.ran(), references)
    assert outcome.verdict == LOST
    assert said in outcome.because


def test_a_sample_used_twice_is_not_survived(tmp_path, references):
    written = Written(tmp_path / "job")
    written.step(3, 1, generation=2, samples=[12, 12])
    written.step(3, 0, generation=2)
    outcome = judge(TRIAL, written.ran(), references)
    assert outcome.verdict == LOST
    assert outcome.because == "step 3 used 2 samples too many and left out 2"


def test_a_redone_step_counts_once(tmp_path, references):
    written = Written(tmp_path / "job")
    for rank in (0, 1):
        written.witness[rank] = [line for line in written.witness[rank] if line.get("committed") != 3]
    written.witness[1] = [line for line in written.witness[1] if line.get("computed") != 3]
    written.step(3, 0, generation=2)
    written.step(3, 1, generation=2)
    assert judge(TRIAL, written.ran(), references).verdict == SURVIVES


def test_a_job_that_stops_early_is_not_survived(tmp_path, references):
    written = Written(tmp_path / "job", steps=5)
    outcome = judge(TRIAL, written.ran(), references)
    assert (outcome.verdict, outcome.because) == (LOST, "rank 0 did not commit the last step")


def test_the_reason_of_a_failed_job_is_said(tmp_path, references):
    outcome = judge(TRIAL, Written(tmp_path / "job", exit_code=1).ran(), references)
    assert (outcome.verdict, outcome.because) == (LOST, "exit code 1: rank 1 gave up")


def test_a_fault_that_never_happened_proves_nothing(tmp_path, references):
    assert judge(TRIAL, Written(tmp_path / "job", injected=()).ran(), references).verdict == DID_NOT_HAPPEN


def test_a_restart_of_all_is_told_apart(tmp_path, references):
    written = Written(tmp_path / "job")
    written.journal.append({"event": "restart", "lost_steps": 2, "because": "nobody is clean"})
    outcome = judge(TRIAL, written.ran(), references)
    assert (outcome.verdict, outcome.lost_steps) == (RESTARTS, 2)


def test_what_is_done_more_often_is_a_side_effect_repeated(tmp_path, references):
    written = Written(tmp_path / "job")
    for rank in (0, 1, 1):
        written.effect(rank, "appends to", "/out/log.csv")
    written.effect(1, "writes", "/out/4711.json")  # not in the undisturbed runs: nothing to compare it with
    written.output = ["epoch 1 begins", "epoch 1 begins", "keepstep: a line of ours", "keepstep: a line of ours"]
    outcome = judge(TRIAL, written.ran(), references)
    assert outcome.repeated == {("appends to", "/out/log.csv"): 2, ("prints", "epoch 1 begins"): 1}


def test_runs_that_differ_by_themselves_are_named_and_not_compared(tmp_path):
    first, second = Written(tmp_path / "first", injected=()), Written(tmp_path / "second", injected=())
    second.commit(2, 0)["state"] = {"model/w": "ff"}
    references = References(read(first), read(second))
    assert references.differs == "step 2, rank 0: model/w"
    written = Written(tmp_path / "job")
    written.commit(5, 1)["state"] = {"model/w": "cc"}
    outcome = judge(TRIAL, written.ran(), references)
    assert outcome.verdict == SURVIVES
    assert "bits cannot be compared" in outcome.because


def test_a_loss_that_only_another_node_wrote_down_counts(tmp_path, references):
    ran = Written(tmp_path / "job").ran()
    metrics = ran.folder / "run" / "metrics.jsonl"
    lines = metrics.read_text().splitlines()
    (ran.folder / "run" / "metrics.node1.jsonl").write_text(lines[2] + "\n")
    metrics.write_text("\n".join([*lines[:2], '{"step": 3, "mono": 103}', *lines[3:]]) + "\n")
    assert judge(TRIAL, ran, references).verdict == SURVIVES
    (ran.folder / "run" / "metrics.node1.jsonl").write_text('{"step": 3, "mono": 103, "loss": 0.25}\n')
    assert "step 3: the loss" in judge(TRIAL, ran, references).because


def test_replicas_that_differ_are_named(tmp_path):
    written = Written(tmp_path / "job")
    written.commit(2, 1)["state"] = {"model/w": "ab"}
    assert evidence.unequal_replicas(read(written)) == ["model/w"]


def test_each_jobs_own_folder_counts_as_the_same_place(tmp_path):
    for name in ("one", "two"):
        own = tmp_path / name / "own"
        (tmp_path / name / "witness").mkdir(parents=True)
        line = {"effect": "writes", "of": f"{own}/step-3/model.pt", "step": 0, "rehearsing": False}
        (tmp_path / name / "witness" / "rank0.jsonl").write_text(json.dumps(line) + "\n")
        (tmp_path / name / "output.txt").write_text(f"saved to {own}/step-3\n")
    one, two = (evidence.read(tmp_path / name, [tmp_path / name / "output.txt"]) for name in ("one", "two"))
    assert one.effects == two.effects == {("writes", "{job}/step-3/model.pt"): 1}
    assert one.lines == two.lines == {"saved to {job}/step-3": 1}
