"""Several recoverable functions in one script, one after another (docs/design/functions.md)."""

import re

import pytest

from harness import JOBS, finish, json_lines, start
from keepstep.report.journal import read_run
from several_nodes import finish_nodes, start_nodes
from user_scripts import run_script, training

FUNCTIONS = {"pretrain": 6, "finetune": 8, "again": 4}


def run(folder, *extra, world=2, spares=0, options=()):
    process, command = start(
        folder, JOBS / "functions.py", "--out", folder, *extra, world=world, spares=spares, options=options
    )
    return finish(folder, process, command)


def notes(folder):
    return {path.stem: json_lines(path) for path in sorted(folder.glob("*.jsonl"))}


def losses(folder):
    """By function and step; all ranks say the same."""
    found = {}
    for lines in notes(folder).values():
        for line in lines:
            if "step" in line:
                assert found.setdefault((line["function"], line["step"]), line["loss"]) == line["loss"]
    return found


def said(folder, key):
    return [line[key] for lines in notes(folder).values() for line in lines if key in line]


def test_what_is_logged_after_the_loop_belongs_to_its_last_step(tmp_path):
    lines = [
        "state = run.setup(lambda: keepstep.State(model=torch.nn.Linear(4, 4)))",
        "for step in run.steps(Data(), global_batch=4, micro_batch=2, last_step=3):",
        "    for x in step: step.add_loss(x.sum())",
        "    step.commit()",
        "step.log(after=run.rank + 7)",
    ]
    job = run_script(tmp_path, training(*lines))
    assert job.exit_code == 0, job.explain()
    assert [line.get("after") for line in job.metrics] == [None, None, 7], job.explain()


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    job = run(folder)
    assert job.exit_code == 0, job.explain()
    return folder


def assert_like(reference, folder, job):
    assert job.exit_code == 0, job.explain()
    assert losses(folder) == losses(reference), job.explain()
    assert set(said(folder, "final")) == set(said(reference, "final")), job.explain()


def test_each_function_counts_its_own_steps_and_takes_what_the_one_before_returned(reference):
    assert sorted(losses(reference)) == sorted((name, n + 1) for name, last in FUNCTIONS.items() for n in range(last))
    assert sorted(said(reference, "once")) == sorted(FUNCTIONS)
    assert len(read_run(reference / "journal").commits) == sum(FUNCTIONS.values())  # as keepstep report sees them
    processes = notes(reference)
    assert len(processes) == 2
    for lines in processes.values():
        assert [line["entry"] for line in lines if "entry" in line] == ["start"] * 3
    # The third one trains a model of its own: the same as the first, as far as it goes.
    assert [losses(reference)["again", n] for n in range(1, 5)] == [
        losses(reference)["pretrain", n] for n in range(1, 5)
    ]


@pytest.mark.parametrize(
    ("step", "spares"), [(5, 1), *(pytest.param(*each, marks=pytest.mark.long) for each in ((1, 0), (1, 1), (5, 0)))]
)
def test_a_rank_killed_in_the_second_function_is_replaced_there(tmp_path, reference, step, spares):
    job = run(tmp_path, "--die", f"finetune:{step}:1", spares=spares)
    assert_like(reference, tmp_path, job)
    assert len(said(tmp_path, "dies")) == 1
    entries = [
        [(line["function"], line["entry"]) for line in lines if line.get("entry", "rehearsal") != "rehearsal"]
        for lines in notes(tmp_path).values()
    ]
    assert [("pretrain", "start"), ("finetune", "start"), ("finetune", "recovery"), ("again", "start")] in entries
    assert [("finetune", "replacement"), ("again", "start")] in entries, job.explain()


def test_a_rank_killed_between_two_functions_is_replaced_in_the_next_one(tmp_path, reference):
    job = run(tmp_path, "--die", "pretrain:returned:0", spares=1)
    assert_like(reference, tmp_path, job)
    assert [event["ranks"] for event in job.events("late_death")] == [[0]], job.explain()


STATISTICS = """
import signal
@keepstep.recoverable
def train(run):
    state = run.setup(lambda: keepstep.State(model=model, optimizer=optimizer))
    replica = run.ddp(state.model)
    for step in run.steps(Data(), global_batch=8, micro_batch=2, last_step=3):
        for batch in step:
            step.backward(replica(batch).sum())
        step.commit(optimizer.step)
@keepstep.recoverable(rehearse=False)
def look(run):
    run.setup(lambda: keepstep.State(model=model))
    print(f"rank {run.rank} has seen", [[float(each) for each in buffer.flatten()] for buffer in model.buffers()])
    run._form("look")
    print(f"rank {run.rank} now has", [[float(each) for each in buffer.flatten()] for buffer in model.buffers()])
model = torch.nn.BatchNorm1d(4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
train()
if os.environ["RANK"] == "1" and not os.path.exists(sys.argv[1] + "/died"):
    open(sys.argv[1] + "/died", "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
look()
"""


@pytest.mark.long
def test_a_replacement_between_two_functions_begins_with_the_statistics_of_a_peer(tmp_path):
    """Those of the rank that died are lost with it. The survivors keep their own."""
    job = run_script(tmp_path, STATISTICS, [tmp_path], world=3, spares=1)
    assert job.exit_code == 0, job.explain()
    seen, now = ({int(rank): found for rank, found in re.findall(rf"rank (\d) {word} (.*)", job.output)}
                 for word in ("has seen", "now has"))  # fmt: skip
    assert seen[0] == now[0] and seen[2] == now[2] and seen[0] != seen[2], job.explain()
    assert now[1] in (seen[0], seen[2]), job.explain()


def test_a_process_that_dies_while_it_builds_for_the_second_function_is_replaced(tmp_path, reference):
    job = run(tmp_path, "--die", "finetune:built:any")
    assert_like(reference, tmp_path, job)


@pytest.mark.long
def test_a_rank_of_another_node_is_killed_in_the_second_function(tmp_path, reference):
    nodes = start_nodes(
        tmp_path, JOBS / "functions.py", "--out", tmp_path, "--die", "finetune:5:1", world=1,
    )  # fmt: skip
    assert_like(reference, tmp_path, finish_nodes(nodes))
    assert len(said(tmp_path, "dies")) == 1


@pytest.mark.long
def test_each_function_saves_to_a_destination_of_its_own_and_goes_on_from_it(tmp_path, reference):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    job = run(first, "--checkpoints", tmp_path / "saved")
    assert_like(reference, first, job)
    job = run(second, "--checkpoints", tmp_path / "saved")
    assert job.exit_code == 0, job.explain()
    assert losses(second) == {}, job.explain()  # nothing is left to do
    assert set(said(second, "final")) == set(said(reference, "final"))


def test_what_cannot_be_had_in_another_process_is_refused_before_the_next_function(tmp_path):
    job = run(tmp_path, "--return", "model")
    assert job.exit_code == 1, job.explain()
    assert "pretrain() returned a __main__.Net. Another recoverable function follows" in job.output, job.explain()


MANY_CALLS = """
import gc, weakref
models = []
@keepstep.recoverable
def train(run):
    def build():
        model = torch.nn.Linear(4, 4)
        return keepstep.State(model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
    state = run.setup(build)
    gc.collect()
    print("alive:", sum(model() is not None for model in models))
    models.append(weakref.ref(state.model))
    model = run.ddp(state.model)
    for step in run.steps(Data(), global_batch=4, micro_batch=2, last_step=2):
        for batch in step:
            step.backward(model(batch).sum())
        step.commit(state.optimizer.step)
for _ in range(4):
    train()
"""


def test_a_function_that_is_over_leaves_no_memory_taken(tmp_path):
    job = run_script(tmp_path, MANY_CALLS)
    assert job.exit_code == 0, job.explain()
    assert re.findall(r"alive: (\d+)", job.output) == ["0"] * 8, job.explain()


def test_a_function_inside_of_another_is_refused(tmp_path):
    job = run(tmp_path, "--nested")
    assert job.exit_code == 1, job.explain()
    assert "one recoverable function at a time" in job.output, job.explain()
