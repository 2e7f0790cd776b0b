"""State that is empty when it is protected, and grows later: carried, or named before any fault."""

import importlib.util

import pytest

from harness import JOBS, assert_same_history, assert_survivors_kept_their_process, finish, start

UNTIL = 8
KILLS = ["kill:rank=1,step=4,phase=backward", "kill:rank=0,step=6,phase=update"]


def run(folder, mode, *extra, until=UNTIL, inject=(), spares=0):
    injected = [part for text in inject for part in ("--inject", text)]
    process, command = start(
        folder, JOBS / "late_state.py", mode, "--out", folder, "--until", until, *extra,
        spares=spares, options=injected,
    )  # fmt: skip
    return finish(folder, process, command)


def check_lists(tmp_path, mode):
    whole = run(tmp_path / "whole", mode)
    assert whole.exit_code == 0, whole.explain()
    job = run(tmp_path / "killed", mode, inject=KILLS, spares=1)
    assert_same_history(job, whole, UNTIL)
    assert not job.events("restart"), job.explain()
    assert_survivors_kept_their_process(job, [1, 0], 2)


def test_tensors_in_lists_and_what_was_none_or_empty_reach_a_replacement(tmp_path):
    check_lists(tmp_path, "lists")


@pytest.mark.skipif(not importlib.util.find_spec("pytorch_optimizer"), reason="pytorch_optimizer is not installed")
def test_soap_as_it_is_published_reaches_a_replacement(tmp_path):
    check_lists(tmp_path, "real-soap")


@pytest.mark.long
def test_averages_of_buffers_that_are_the_same_on_all_ranks_reach_a_replacement(tmp_path):
    check_lists(tmp_path, "average-same")


@pytest.mark.long
def test_copies_of_per_rank_buffers_are_said_and_made_again_by_the_next_update(tmp_path):
    check_lists(tmp_path, "copy")
    output = (tmp_path / "whole" / "output.txt").read_text()
    assert output.count("the update leaves other values on each rank in 'average/module.norm") == 1, output


@pytest.mark.long
def test_tensors_in_lists_come_back_from_a_checkpoint(tmp_path):
    whole = run(tmp_path / "whole", "lists")
    saves = tmp_path / "saves"
    first = run(tmp_path / "first", "lists", "--durable", saves, until=4)
    assert first.exit_code == 0, first.explain()
    second = run(tmp_path / "second", "lists", "--durable", saves)
    assert second.exit_code == 0, second.explain()
    assert [line["step"] for line in second.metrics] == list(range(5, UNTIL + 1)), second.explain()
    assert [line["bits"] for line in second.metrics] == [line["bits"] for line in whole.metrics[4:]]
    for rank, final in whole.finals().items():
        for key in ("final", "buffers"):
            assert second.finals()[rank][key] == final[key], f"rank {rank}: {key}{second.explain()}"


@pytest.mark.parametrize(
    ("mode", "step", "name", "line"),
    [
        ("set", 2, "'callback/of_step.seen'", "write sorted(value)"),
        ("layer", 2, "'model/adapter.weight'", "Add it in the function that run.setup calls"),
        pytest.param(
            *("group", 2, "the optimizer 'optimizer' has 7 parameters", "Give it all of them"), marks=pytest.mark.long
        ),
        pytest.param(
            *("average", 2, "average/module.norm.running_mean'", "torch.distributed.broadcast(buffer, 0)"),
            marks=pytest.mark.long,
        ),
    ],
)
def test_what_a_replacement_could_not_have_is_named_before_any_fault(tmp_path, mode, step, name, line):
    job = run(tmp_path, mode)
    assert job.exit_code != 0, job.explain()
    assert name in job.output and line in job.output, job.explain()
    assert len(job.metrics) == step, job.explain()
