"""A job that is told to stop soon: SIGUSR1 to a launcher. Under Slurm: test_slurm.py."""

import os
import signal
import time

import pytest

from harness import JOBS, ROOT, finish, json_lines, start
from several_nodes import finish_nodes, free_port, kill, start_node, start_nodes

JOB = JOBS / "noticed.py"


def notes_of(folder):
    return [note for path in sorted(folder.glob("*.jsonl")) for note in json_lines(path)]


def wait_for_step(folder, step, process, limit_s=120):
    deadline = time.monotonic() + limit_s
    while not any(note.get("step", 0) >= step for note in notes_of(folder)):
        assert process.poll() is None, "it ended"
        assert time.monotonic() < deadline, notes_of(folder)
        time.sleep(0.02)


def assert_all_stopped_after_one_step(job, world):
    """All ranks knew of the notice after the same step, saved there, and did nothing after it."""
    why = job.explain()
    assert job.exit_code == 75, why
    last = {rank: max(n["step"] for n in job.notes if n.get("rank") == rank and "step" in n) for rank in range(world)}
    assert len(set(last.values())) == 1, why
    saved = {note["rank"]: note["saving"] for note in job.notes if "saving" in note}
    assert saved == last, why
    for note in job.notes:
        if "step" in note:
            assert (note["notice"] is not None) == (note["step"] == last[note["rank"]]), why
        assert "finished" not in note and "returned" not in note, why
    assert f"stopped after step {last[0]}: SIGUSR1 came to node" in job.output, why
    return last[0]


def test_ranks_stop_after_the_same_step_and_what_they_saved_is_gone_on_from(tmp_path):
    process, command = start(tmp_path, JOB, "--out", tmp_path, world=3)
    wait_for_step(tmp_path, 3, process)
    os.kill(process.pid, signal.SIGUSR1)
    first = finish(tmp_path, process, command)
    done = assert_all_stopped_after_one_step(first, 3)
    (line,) = first.events("notice")
    assert line["signal"] == signal.SIGUSR1
    options = ["--journal", tmp_path / "second"]
    process, command = start(tmp_path, JOB, "--out", tmp_path, "--until", done + 3, world=3, options=options)
    second = finish(tmp_path, process, command)
    assert second.exit_code == 0, second.explain()
    assert {note["start"] for note in second.notes if "start" in note} == {0, done}, second.explain()
    assert sum("finished" in note for note in second.notes) == 3, second.explain()


def test_a_notice_to_one_node_stops_all_nodes(tmp_path):
    nodes = start_nodes(tmp_path, JOB, "--out", tmp_path, world=1)
    wait_for_step(tmp_path, 3, nodes[0].process)
    os.kill(nodes[1].process.pid, signal.SIGUSR1)
    job = finish_nodes(nodes)
    assert_all_stopped_after_one_step(job, 2)
    assert job.output.count("stopped after step") == 2, "every launcher says why"


@pytest.mark.long
def test_a_rank_that_dies_while_it_saves_is_replaced_and_all_save_again(tmp_path):
    process, command = start(tmp_path, JOB, "--out", tmp_path, "--die-once", 1, world=2)
    wait_for_step(tmp_path, 3, process)
    os.kill(process.pid, signal.SIGUSR1)
    job = finish(tmp_path, process, command)
    assert job.exit_code == 75, job.explain()
    saved = [note["saving"] for note in job.notes if "saving" in note and note["rank"] == 1]
    assert len(saved) == 2 and saved[1] == saved[0] + 1, job.explain()


@pytest.mark.long
def test_a_second_notice_changes_nothing_and_workers_survive_the_signal(tmp_path):
    process, command = start(tmp_path, JOB, "--out", tmp_path, world=2)
    wait_for_step(tmp_path, 3, process)
    workers = [int(path.stem) for path in tmp_path.glob("*.jsonl")]
    for pid in [process.pid, *workers, process.pid]:  # as Slurm does: to every process
        os.kill(pid, signal.SIGUSR1)
    assert_all_stopped_after_one_step(finish(tmp_path, process, command), 2)


def test_a_notice_before_the_first_rank_ends_the_launcher(tmp_path):
    node = start_node(tmp_path, 0, f"127.0.0.1:{free_port()}", "true", options=["--no-python"])
    try:
        node.wait_for_output("waits for node 1")
        os.kill(node.process.pid, signal.SIGUSR1)
        assert node.process.wait(60) == 75, node.output()
        assert "stopped before the first step: SIGUSR1 came to node 0" in node.output()
    finally:
        kill(node)


def test_a_script_without_a_recoverable_function_is_left_alone(tmp_path):
    script = tmp_path / "plain.sh"
    script.write_text(f'echo "up $RANK"\nuntil [ -e {tmp_path}/go ]; do sleep 0.05; done\necho "down $RANK"\n')
    process, command = start(tmp_path, "bash", script, options=["--no-python"])
    try:
        deadline = time.monotonic() + 60
        while (tmp_path / "output.txt").read_text().count("up") < 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGUSR1)
        while "it is left to the script" not in (tmp_path / "output.txt").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        (tmp_path / "go").touch()
    job = finish(tmp_path, process, command)
    assert job.exit_code == 0, job.explain()
    assert job.output.count("down") == 2, job.explain()


def test_a_cpp_program_stops_after_the_same_step(tmp_path):
    program = ROOT / "build" / "keepstep_example_linear"
    if not program.exists():
        pytest.skip("build/keepstep_example_linear is not built")
    process, command = start(tmp_path, program, "--until", 100_000_000, options=["--no-python"])
    deadline = time.monotonic() + 60
    while not json_lines(tmp_path / "journal" / "metrics.jsonl"):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGUSR1)
    job = finish(tmp_path, process, command)
    assert job.exit_code == 75, job.explain()
    steps = [line["step"] for line in job.metrics]
    assert steps == list(range(1, steps[-1] + 1))
    assert f"stopped after step {steps[-1]}: SIGUSR1 came" in job.output, job.explain()
