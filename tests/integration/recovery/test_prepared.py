"""Plain PyTorch loops over what run.prepare returns, and ranks that are killed: every batch once, the same bits."""

import re

import pytest

from harness import JOBS, PHASES, assert_survivors_kept_their_process, finish, start
from user_scripts import run_script, training

STEPS = 20  # 3 epochs of 13 batches, 2 in each step
KILLS = ["kill:rank=1,step=3,phase=backward", "kill:rank=0,step=7,phase=update", "kill:rank=1,step=9,phase=between"]


def run_prepared(folder, *words, world=2, inject=(), options=()):
    injected = [part for text in inject for part in ("--inject", text)]
    process, command = start(
        folder, JOBS / "prepared_loop.py", "--out", folder, *words, world=world, spares=1 if inject else 0,
        options=[*injected, *options],
    )  # fmt: skip
    return finish(folder, process, command)


def of_ranks(job, what):
    """By step, what each rank logged."""
    return [[line[key] for key in sorted(line) if key.startswith(f"{what}_")] for line in job.metrics]


def assert_same(job, reference):
    why = job.explain()
    assert (job.exit_code, reference.exit_code) == (0, 0), f"{why}{reference.explain()}"
    assert [line["step"] for line in job.metrics] == [line["step"] for line in reference.metrics], why
    for what in ("ids", "bits"):
        assert of_ranks(job, what) == of_ranks(reference, what), why
    for each in ("rate", "epoch"):
        assert [line[each] for line in job.metrics] == [line[each] for line in reference.metrics], why
    for rank, final in reference.finals().items():
        for key in ("final", "buffers", "lr", "scale", "version"):
            assert job.finals()[rank][key] == final[key], f"rank {rank}: {key} differs{why}"


CASES = {
    "plain": [],
    "workers": ["--workers", "2"],
    "accumulates, the rest goes on in the next epoch": ["--accumulate", "2"],
    "accumulates, the rest is flushed": ["--case", "flushed", "--accumulate", "2"],
    "scaler that skips": ["--case", "scaler"],
    "two optimizers": ["--case", "two"],
    "schedule by epochs": ["--case", "epochs"],
    "DistributedSampler": ["--case", "distributed"],
    "sampler of one's own": ["--case", "own"],
    "cached": ["--case", "cached"],
    "leaves epochs": ["--break-at", "4", "--evaluate"],
}


def long_but(chosen, cases):
    return [case if case in chosen else pytest.param(case, marks=pytest.mark.long) for case in cases]


@pytest.mark.parametrize("case", long_but(["accumulates, the rest goes on in the next epoch"], CASES))
def test_a_plain_loop_loses_nothing(case, tmp_path):
    reference = run_prepared(tmp_path / "undisturbed", *CASES[case])
    job = run_prepared(tmp_path / "killed", *CASES[case], inject=KILLS)
    assert_same(job, reference)
    assert_survivors_kept_their_process(job, [1, 0, 1], 2)


def test_what_follows_an_epoch_is_done_again_where_it_was_interrupted_and_only_there(tmp_path):
    words = ["--evaluate", "--accumulate", "1", "--samples", "24"]  # the epochs end with a commit
    reference = run_prepared(tmp_path / "undisturbed", *words)
    later = ["kill:rank=0,step=14,phase=backward"]
    job = run_prepared(tmp_path / "killed", *words, "--die-behind", 1, inject=later)
    assert_same(job, reference)
    assert len(job.events("fault_detected")) == 2, job.explain()
    evaluated = [
        [(note["evaluated"], note["value"]) for note in each.notes if "evaluated" in note and note["rank"] == 0]
        for each in (job, reference)
    ]
    assert [epoch for epoch, _ in evaluated[1]] == [0, 1, 2], reference.explain()
    assert evaluated[0] == evaluated[1], job.explain()


def test_a_rate_that_follows_a_metric_falls_with_the_same_step(tmp_path):
    """Ranks die between the metric and the commit that it belongs to: one before it is given, one behind."""
    words = ["--case", "plateau", "--evaluate", "--samples", "24"]  # 6 steps in an epoch
    reference = run_prepared(tmp_path / "undisturbed", *words)
    rates = [line["rate"] for line in reference.metrics]  # when the step began
    assert rates == [1e-2] * 7 + [5e-3] * 6 + [2.5e-3] * 5, reference.explain()
    kills = ["kill:rank=0,step=7,phase=backward", "kill:rank=0,step=13,phase=after_vote"]
    job = run_prepared(tmp_path / "killed", *words, "--die-behind", 0, inject=kills)
    assert_same(job, reference)
    assert len(job.events("fault_detected")) == 3, job.explain()


def test_an_epoch_has_each_sample_once_and_its_last_round_is_filled_from_the_next(tmp_path):
    job = run_prepared(tmp_path)
    used = [i for step in of_ranks(job, "ids") for pair in zip(*([iter(r)] * 2 for r in step), strict=True)
            for batch in pair for i in batch]  # fmt: skip
    for epoch in range(3):
        assert sorted(used[26 * epoch : 26 * (epoch + 1)]) == list(range(26)), job.explain()
    assert len(used) == 2 * 2 * STEPS
    assert [line["epoch"] for line in job.metrics] == [0] * 7 + [1] * 6 + [2] * 7


@pytest.mark.long
@pytest.mark.parametrize("phase", PHASES)
def test_four_ranks_killed_in_each_phase(phase, tmp_path):
    words = ["--workers", "1", "--samples", "58"]  # 29 batches: 8 steps in the first epoch, the last with 3 of the next
    reference = run_prepared(tmp_path / "undisturbed", *words, world=4)
    inject = [f"kill:rank={rank},step={3 + 4 * rank},phase={phase}" for rank in range(4)]
    job = run_prepared(tmp_path / "killed", *words, world=4, inject=inject)
    assert_same(job, reference)
    assert_survivors_kept_their_process(job, [0, 1, 2, 3], 4)
    assert len(job.events("verdict")) == 4, job.explain()


@pytest.mark.long
def test_a_loop_that_a_notice_stopped_goes_on_from_its_checkpoint(tmp_path):
    reference = run_prepared(tmp_path / "undisturbed")
    first = run_prepared(tmp_path / "first", "--saves", tmp_path / "saves", "--last-step", 9)
    second = run_prepared(tmp_path / "second", "--saves", tmp_path / "saves")
    assert (first.exit_code, second.exit_code) == (0, 0), f"{first.explain()}{second.explain()}"
    for what in ("ids", "bits"):
        assert of_ranks(first, what) + of_ranks(second, what) == of_ranks(reference, what), second.explain()
    assert [n["version"] for n in second.notes if "entry" in n] == [9, 9]
    assert second.finals()[0]["final"] == reference.finals()[0]["final"]


def test_gradients_are_there_until_the_next_step_begins(tmp_path):
    """A loop may look at them after `optimizer.step()`. A replacement begins the next step without, so all ranks do."""
    lines = [
        "model = torch.nn.Linear(4, 1)",
        "state = run.setup(lambda: keepstep.State(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)))",
        "loader = torch.utils.data.DataLoader(Data(), batch_size=4)",
        "trained, optimizer, loader = run.prepare(state.model, state.optimizer, loader, last_step=4)",
        "for x in loader:",
        "    assert model.weight.grad is None",
        "    trained(x).square().mean().backward()",
        "    optimizer.step()",
        "    assert model.weight.grad.norm() > 0",
    ]
    job = run_script(tmp_path, training(*lines))
    assert job.exit_code == 0 and len(job.metrics) == 4, job.explain()
    assert not job.events("fault_detected"), job.explain()


def test_an_order_that_nothing_fixes_is_refused(tmp_path):
    job = run_prepared(tmp_path, "--case", "forgetful", inject=["kill:rank=1,step=9,phase=backward"])
    assert job.exit_code == 1, job.explain()
    assert re.search(r"run.prepare: epoch 1 has another order here than .* set_epoch\(epoch\)", job.output)


HEAD = """
import torch, keepstep
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
data = TensorDataset(torch.ones(8, 4))
class Stream(IterableDataset):
    def __iter__(self):
        return iter(data)
def build():
    model = torch.nn.Linear(4, 4)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(sgd)
    return keepstep.State(model=model, optimizer=sgd, schedule=torch.optim.lr_scheduler.ConstantLR(sgd))
def ready(run, loader=DataLoader(data, 2), **how):
    state = run.setup(build)
    return state, *run.prepare(state.model, state.optimizer, loader, **how)
def ahead(loader):
    loader = iter(loader)
    held = next(loader)
    for following in loader:
        yield held
        held = following
    yield held
"""
FOLLOWS = [
    "def build():", "    model = torch.nn.Linear(4, 4)", "    sgd = torch.optim.SGD(model.parameters(), lr=0.1)",
    "    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(sgd)",
    "    return keepstep.State(model=model, optimizer=sgd, plateau=plateau)", "state = run.setup(build)",
    "how = {'plateau': state.plateau}",
    "model, optimizer, loader, plateau = run.prepare(state.model, state.optimizer, DataLoader(data, 2), **how)",
]  # fmt: skip
MISTAKES = [
    (["ready(run, [1, 2])"], r"the loader is a list; .* write keepstep.data.cached\(loader\)"),
    (["ready(run, DataLoader(Stream(), 2))"], r"Stream is an IterableDataset.* keepstep.data.cached\(DataLoader"),
    (
        ["state = run.setup(build)", "other = torch.optim.SGD(state.model.parameters(), lr=1)",
         "run.prepare(state.model, other, DataLoader(data, 2))"],
        r"this SGD is not protected.*keepstep.State\(..., optimizer=optimizer\)",
    ),
    (
        ["plateau = torch.optim.lr_scheduler.ReduceLROnPlateau", "state = run.setup(build)",
         "run.prepare(state.model, state.optimizer, DataLoader(data, 2), schedule=plateau(state.optimizer))"],
        r"ReduceLROnPlateau moves after an evaluation. Pass it as plateau=.* plateau.step\(metric\)",
    ),
    (
        ["state, model, optimizer, loader = ready(run)", "for x, in loader:", "    model(x).sum().backward()",
         "    state.optimizer.step()"],
        r"the optimizer 'optimizer' steps outside .*the one that run.prepare returned",
    ),
    (
        ["state, model, optimizer, loader = ready(run)", "for x, in loader:", "    model(x).sum().backward()",
         "    optimizer.step()", "    optimizer.step()"],
        r"no batch of the loader that run.prepare returned belongs to this update",
    ),
    (
        ["state, model, optimizer, loader = ready(run)", "for x, in ahead(loader):", "    model(x).sum().backward()",
         "    optimizer.step()"],
        r"step 1: the loop took 2 batches and computed 1\..*num_workers= loads ahead",
    ),
    (
        ["state, model, optimizer, loader = ready(run)", "for x, in loader:", "    model(x).sum().backward()",
         "    optimizer.step()", "    state.schedule.step()"],
        r"'schedule' .*run.prepare\(..., schedule=",
    ),
    (
        ["state, model, optimizer, loader = ready(run)", "for x, in loader:", "    model(x).sum().backward()",
         "    optimizer.step()", "next(run.steps(data, global_batch=2, micro_batch=2, last_step=9))"],
        r"used the loader that run.prepare returned; use that, or run.steps",
    ),
    (
        [*FOLLOWS, "for x, in loader:", "    model(x).sum().backward()", "    optimizer.step()", "    plateau.step(1)"],
        r"ReduceLROnPlateau.step: after a fault this call would be lost, or made twice",
    ),
    (
        [*FOLLOWS, "for epoch in range(2):", "    for x, in loader:", "        model(x).sum().backward()",
         "        optimizer.step()", "    plateau.step(1)"],
        r"ReduceLROnPlateau.step: .* Call it behind the batches of an epoch of loader.epochs",
    ),
    (
        [*FOLLOWS, "for x, in loader:", "    model(x).sum().backward()", "    optimizer.step()",
         "    state.plateau.step(1)"],
        r"'plateau' .*run.prepare\(.*plateau=",
    ),
]  # fmt: skip


@pytest.mark.parametrize("mistake", long_but([0, 4, 6], range(len(MISTAKES))))
def test_each_mistake_is_named_with_what_to_write(tmp_path, mistake):
    """What is refused before the first step needs no second rank."""
    lines, error = MISTAKES[mistake]
    body = "\n    ".join(lines)
    (tmp_path / "script.py").write_text(f"{HEAD}@keepstep.recoverable\ndef train(run):\n    {body}\ntrain()\n")
    process, command = start(tmp_path, tmp_path / "script.py", world=1)
    job = finish(tmp_path, process, command)
    assert job.exit_code == 1, job.explain()
    assert re.search(error, job.output), f"{error}{job.explain()}"
