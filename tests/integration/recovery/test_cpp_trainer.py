"""A C++ program without Python under SIGKILL in every phase of a step: nothing is lost, nothing is repeated."""

import contextlib
import math
import os
import random
import signal
import subprocess
import time

import pytest

from harness import KEEPSTEP, PHASES, environment, finish, json_lines, start
from linear import (
    BATCH,
    DATASET,
    MISTAKES,
    PROGRAM,
    UNTIL,
    arguments,
    assert_nothing_lost,
    assert_only_these_were_replaced,
    assert_same_losses_and_state,
    finish_linear,
    killed_late,
    read_linear,
    run_linear,
    start_linear_on_nodes,
)
from several_nodes import finish_nodes, kill, node_lines, start_nodes, wait_for_steps

LONG = 3000  # steps; enough that something is killed in the middle


def wait_for_spares(folder, node, count, limit_s=60):
    deadline = time.monotonic() + limit_s
    while sum(line["event"] == "spawned" for line in node_lines(folder, "journal", node)) < count:
        assert time.monotonic() < deadline, f"no {count} processes on node {node} in {limit_s} s"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The job without faults, by (world, until); each is run once."""
    known = {}

    def get(world, until=UNTIL):
        if (world, until) not in known:
            folder = tmp_path_factory.mktemp(f"linear-{world}")
            known[world, until] = run_linear(folder, world=world, until=until)
            assert known[world, until].job.exit_code == 0, known[world, until].job.explain()
        return known[world, until]

    return get


def kills(phase, world):
    """Each rank once, a few steps apart."""
    return [f"kill:rank={rank},step={2 + 2 * rank},phase={phase}" for rank in range(world)]


def test_an_undisturbed_job_learns_and_uses_each_sample_once_an_epoch(reference):
    linear = reference(3)
    used = [i for step in linear.samples() for i in step]
    assert len(used) == UNTIL * BATCH
    assert sorted(used[:DATASET]) == list(range(DATASET))
    assert linear.finals[0] == linear.finals[1] == linear.finals[2] != b""
    losses = reference(2, LONG).losses()
    assert losses[-1] < 0.01 * losses[0], losses


@pytest.mark.parametrize("phase", PHASES)
def test_each_rank_is_killed_once_and_replaced_by_a_spare(tmp_path, reference, phase):
    linear = run_linear(tmp_path, world=3, spares=1, inject=kills(phase, 3))
    assert_nothing_lost(linear, reference(3))
    assert_only_these_were_replaced(linear, [0, 1, 2], 3)
    assert len(linear.job.events("verdict")) == 3, linear.job.explain()


@pytest.mark.parametrize("phase", ["allreduce", "update"])
def test_without_a_spare_a_new_process_is_started(tmp_path, reference, phase):
    linear = run_linear(tmp_path, world=2, inject=kills(phase, 2))
    assert_nothing_lost(linear, reference(2))
    assert_only_these_were_replaced(linear, [0, 1], 2)


@pytest.mark.parametrize("phase", ["hydrate", "recovery"])
def test_a_death_during_a_recovery_loses_nothing(tmp_path, reference, phase):
    other = 1 if phase == "hydrate" else 0
    inject = ["kill:rank=1,step=4,phase=allreduce", f"kill:rank={other},step=4,phase={phase}"]
    linear = run_linear(tmp_path, world=3, spares=1, inject=inject)
    assert_nothing_lost(linear, reference(3))
    assert not linear.job.events("restart"), linear.job.explain()


@pytest.mark.parametrize("phase", ["forward", "allreduce", "update"])
def test_a_failure_that_passes_is_done_again_in_the_same_process(tmp_path, reference, phase):
    linear = run_linear(tmp_path, inject=[f"exception:rank=1,step=4,phase={phase}"])
    assert_nothing_lost(linear, reference(2))
    assert_only_these_were_replaced(linear, [], 2)
    assert len(linear.job.events("verdict")) == 1, linear.job.explain()


@pytest.mark.parametrize("kind", ["segv", "exit"])
def test_other_ways_to_die_are_survived_too(tmp_path, reference, kind):
    linear = run_linear(tmp_path, spares=1, inject=[f"{kind}:rank=0,step=5,phase=forward"])
    assert_nothing_lost(linear, reference(2))
    assert_only_these_were_replaced(linear, [0], 2)


def test_a_flipped_bit_is_found_by_the_vote_and_its_rank_replaced(tmp_path, reference):
    inject = [
        "flip:rank=1,step=4,what=gradient,seed=3",
        "flip:rank=2,step=8,what=parameter,phase=between,seed=7",
    ]
    linear = run_linear(tmp_path, world=3, spares=1, inject=inject, options=["--digest-every", 1])
    assert_nothing_lost(linear, reference(3))
    assert_only_these_were_replaced(linear, [1, 2], 3)
    found = [(line["step"], line["what"], line["ranks"]) for line in linear.job.events("corruption")]
    assert found == [(4, "gradients", [1]), (8, "state", [2])], linear.job.explain()


def test_when_the_last_rank_with_the_state_dies_the_job_restarts_and_says_so(tmp_path, reference):
    inject = ["kill:rank=0,step=4,phase=allreduce", "kill:rank=1,step=4,phase=recovery"]
    linear = run_linear(tmp_path, world=2, inject=inject)
    assert linear.job.exit_code == 0, linear.job.explain()
    assert linear.job.events("restart"), linear.job.explain()
    assert linear.finals == reference(2).finals, linear.job.explain()


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 22))])
def test_ranks_killed_at_random_instants_lose_nothing(tmp_path, reference, seed):
    chance = random.Random(seed)
    until, world = 6000, 3
    process, command = start(
        tmp_path, PROGRAM, *arguments(tmp_path, until), world=world, spares=1, options=["--no-python"],
    )  # fmt: skip
    killed = 0
    while process.poll() is None and killed < 12:
        lines = json_lines(tmp_path / "journal" / "journal.jsonl")
        if sum(line["event"] == "first_commit" for line in lines) <= killed:
            time.sleep(0.002)
            continue  # at most a few faults a step: each recovery comes to its end
        pids = {line["worker"]: line["pid"] for line in lines if line["event"] == "spawned"}
        workers = [line["workers"] for line in lines if line["event"] == "generation_prepared"][-1]
        time.sleep(chance.random() * 0.02)  # the instant is the random thing
        with contextlib.suppress(ProcessLookupError):  # the job may have ended meanwhile
            os.kill(pids[workers[chance.randrange(world)]], signal.SIGKILL)
            killed += 1
    linear = read_linear(finish(tmp_path, process, command))
    assert killed >= 5, linear.job.explain()
    # On a busy machine the job may be through before the last kill.
    assert_nothing_lost(linear, reference(world, until), until, killed_late(linear))
    assert not linear.job.events("restart"), linear.job.explain()


def test_a_spare_waits_with_its_memory_ready_and_is_quiet_at_the_end(tmp_path):
    linear = run_linear(tmp_path, spares=2)
    assert linear.job.exit_code == 0, linear.job.explain()
    assert len(linear.job.events("spawned")) == 4, linear.job.explain()
    assert linear.job.output == "", linear.job.explain()


def test_spares_of_a_program_that_never_attaches_are_not_started(tmp_path):
    process, command = start(tmp_path, "bash", "-c", "echo rank $RANK", world=2, spares=1, options=["--no-python"])
    job = finish(tmp_path, process, command)
    assert job.exit_code == 0, job.explain()
    assert sorted(job.output.split("\n")) == ["", "rank 0", "rank 1"], job.explain()


def test_a_program_behind_a_script_attaches_too(tmp_path, reference):
    script = f'{PROGRAM} "$@"; exit $?'  # the shell stays, as the worker's process
    process, command = start(
        tmp_path, "bash", "-c", script, "linear", "--until", UNTIL, "--features", 40, "--batch", BATCH,
        "--dataset", DATASET, options=["--no-python", "--inject", "kill:rank=1,step=4,phase=update"],
    )  # fmt: skip
    job = finish(tmp_path, process, command)
    assert job.exit_code == 0, job.explain()
    assert [line["loss"] for line in job.metrics] == reference(2).losses(), job.explain()


def test_a_second_program_of_the_same_worker_is_refused(tmp_path):
    twice = f'"{MISTAKES}" fine && "{MISTAKES}" fine'
    process, command = start(tmp_path, "bash", "-c", twice, world=1, options=["--no-python", "--max-restarts", 0])
    job = finish(tmp_path, process, command)
    assert job.exit_code != 0, job.explain()
    assert "an earlier program of this worker attached to the job and left it" in job.output, job.explain()


def test_outside_of_a_job_the_program_says_how_to_start_it():
    done = subprocess.run([PROGRAM], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "keepstep run --no-python" in done.stderr


def test_a_fault_for_a_rank_that_the_job_does_not_have_is_refused_at_the_start():
    done = subprocess.run(
        [KEEPSTEP, "run", "--no-python", "--inject", "kill:rank=7,step=1,phase=forward", PROGRAM],
        env=environment(), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert "there is no rank 7" in done.stderr


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("shapes", 'rank 1 has \'weights\' float32[9]; rank 0 has ["weights","float32",[8]] there'),
        ("no-commit", "step 1 ended without commit"),
        ("unwaited", "commit: 1 operation among ranks of step 1 was not waited for"),
        ("outside", "protected memory changed outside of commit in step 2: 'weights'"),
        ("in-update", "an operation among ranks inside an update"),
        ("twice", "call commit inside the loop over next_step"),
        ("always", "a bug in the program"),
    ],
)
def test_a_mistake_ends_the_job_and_is_named(tmp_path, mode, said):
    process, command = start(tmp_path, MISTAKES, mode, world=2, options=["--no-python"])
    job = finish(tmp_path, process, command)
    assert job.exit_code != 0, job.explain()
    assert said in job.output, job.explain()
    assert not job.events("restart"), job.explain()


@pytest.mark.parametrize("mode", ["once", "bad-update", "late", "fine"])
def test_what_can_be_mended_is(tmp_path, mode):
    process, command = start(tmp_path, MISTAKES, mode, world=2, options=["--no-python"])
    job = finish(tmp_path, process, command)
    assert job.exit_code == 0, job.explain()
    assert [line["step"] for line in job.metrics] == [1, 2, 3, 4], job.explain()
    assert job.output.count("weights are 4") == 2, job.explain()
    assert len(job.events("verdict")) == (1 if mode in ("once", "bad-update") else 0), job.explain()


def test_values_that_json_lacks_are_logged_as_text(tmp_path):
    process, command = start(tmp_path, MISTAKES, "fine", world=2, options=["--no-python"])
    job = finish(tmp_path, process, command)
    assert [line["ratio"] for line in job.metrics] == ["inf"] * 4, job.explain()
    assert [line["note"] for line in job.metrics] == ["step done"] * 4, job.explain()
    assert all(math.isclose(line["loss"], 1.5) for line in job.metrics), job.explain()


# ---- several nodes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["allreduce", "after_vote"])
def test_on_two_nodes_each_rank_is_killed_once(tmp_path, reference, phase):
    linear = finish_linear(start_linear_on_nodes(tmp_path, inject=kills(phase, 4), options=["--spares", 1]))
    assert_nothing_lost(linear, reference(4))
    assert_only_these_were_replaced(linear, [0, 1, 2, 3], 4)


def test_a_link_that_breaks_is_made_anew_and_is_not_the_programs_failure(tmp_path):
    job = finish_nodes(start_nodes(tmp_path, MISTAKES, "cut", world=1, options=["--no-python"]))
    assert job.exit_code == 0, job.explain()
    assert [line["step"] for line in job.metrics] == [1, 2, 3, 4], job.explain()
    assert {fault["kind"] for fault in job.events("fault_detected")} == {"link"}, job.explain()
    assert [line["rung"] for line in job.events("rung")] == ["redo"], job.explain()


def test_a_spare_node_takes_the_place_of_one_that_is_lost(tmp_path, reference):
    nodes = start_linear_on_nodes(tmp_path, until=LONG, launchers=[0, 1, 2], options=["--spare-nodes", 1])
    try:
        wait_for_steps(tmp_path, 10)
        wait_for_spares(tmp_path, node=2, count=2)  # its programs wait, though none there ever had a rank
        kill(nodes[1])
        linear = finish_linear([nodes[0], nodes[2]])
    finally:
        for node in nodes:
            kill(node)
    # What the lost node's ranks had logged for its last step or two is lost with its agent; the losses are not.
    assert_same_losses_and_state(linear, reference(4, LONG), LONG)
    assert_only_these_were_replaced(linear, [2, 3], 4)
    assert linear.job.events("node_replaced"), linear.job.explain()


# ---- all of it ----------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("spares", [0, 1])
@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_every_rank_every_world(tmp_path, reference, phase, world, spares):
    linear = run_linear(tmp_path, world=world, spares=spares, inject=kills(phase, world))
    assert_nothing_lost(linear, reference(world))
    assert_only_these_were_replaced(linear, list(range(world)), world)


@pytest.mark.long
@pytest.mark.parametrize("spares", [0, 1])
@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("phase", ["recovery", "hydrate"])
def test_every_rank_dies_during_a_recovery(tmp_path, reference, phase, world, spares):
    inject = []
    for rank in range(world):
        victim = rank if phase == "hydrate" else (rank + 1) % world
        inject.append(f"kill:rank={rank},step={2 + 2 * rank},phase=allreduce")
        inject.append(f"kill:rank={victim},step={2 + 2 * rank},phase={phase}")
    linear = run_linear(tmp_path, world=world, spares=spares, inject=inject)
    # With two ranks, the second death may leave no clean rank: then a restart is the right answer.
    if linear.job.events("restart"):
        assert world == 2 and phase == "recovery", linear.job.explain()
        assert linear.job.exit_code == 0
        assert linear.finals == reference(world).finals
    else:
        assert_nothing_lost(linear, reference(world))


@pytest.mark.long
@pytest.mark.parametrize(("nodes", "world"), [(2, 1), (2, 2), (4, 1)])
@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_every_rank_on_several_nodes(tmp_path, reference, phase, nodes, world):
    started = start_linear_on_nodes(
        tmp_path, nodes=nodes, world=world, inject=kills(phase, nodes * world), options=["--spares", 1]
    )
    linear = finish_linear(started)
    assert_nothing_lost(linear, reference(nodes * world))
    assert_only_these_were_replaced(linear, list(range(nodes * world)), nodes * world)
