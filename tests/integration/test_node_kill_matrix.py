"""The kill matrix over two nodes: single ranks, and whole nodes with agent and workers. Nothing is lost, no bit changes."""

import pytest

from harness import assert_same_history, assert_survivors_kept_their_process
from nodes import run_small_on_nodes
from test_kill_matrix import PHASES, UNTIL, check, kills


def test_two_nodes_train_like_one(tmp_path, undisturbed):
    job = run_small_on_nodes(tmp_path, count=2, per_node=2)
    assert_same_history(job, undisturbed(4), UNTIL)


def test_batch_norm_dropout_and_a_scaler_train_on_two_nodes_like_on_one(tmp_path, undisturbed):
    job = run_small_on_nodes(tmp_path, count=2, per_node=1, model="rich")
    assert_same_history(job, undisturbed(2, "rich"), UNTIL)


@pytest.mark.parametrize("phase", ["allreduce", "after_vote"])
def test_a_killed_rank_is_replaced_on_its_node(tmp_path, undisturbed, phase):
    inject = [f"kill:rank=3,step=4,phase={phase}", f"kill:rank=0,step=7,phase={phase}"]
    job = run_small_on_nodes(tmp_path, count=2, per_node=2, spares=1, inject=inject)
    check(job, undisturbed(4), 4, [3, 0])


@pytest.mark.parametrize("model", ["plain", "rich"])
def test_a_killed_node_is_replaced_by_the_spare_node(tmp_path, undisturbed, model):
    until = 60
    job = run_small_on_nodes(tmp_path, count=2, per_node=1, spare=1, kill=[(1, 5)], model=model, until=until)
    assert_same_history(job, undisturbed(2, model, until), until)
    assert_survivors_kept_their_process(job, [1], 2)
    assert len(job.events("node_replaced")) == 1, job.explain()
    assert not job.events("restart"), job.explain()


@pytest.mark.long
@pytest.mark.parametrize("per_node", [1, 2])
@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_every_rank_on_two_nodes(tmp_path, undisturbed, phase, per_node):
    world = 2 * per_node
    job = run_small_on_nodes(tmp_path, count=2, per_node=per_node, spares=1, inject=kills(phase, world))
    check(job, undisturbed(world), world, list(range(world)))


@pytest.mark.long
def test_every_phase_every_rank_on_four_nodes(tmp_path, undisturbed):
    job = run_small_on_nodes(tmp_path, count=4, per_node=1, spares=1, inject=kills("allreduce", 4))
    check(job, undisturbed(4), 4, list(range(4)))


@pytest.mark.long
@pytest.mark.parametrize("turn", range(5))
def test_two_nodes_are_killed_one_after_the_other(tmp_path, undisturbed, turn):
    until = 80
    job = run_small_on_nodes(
        tmp_path, count=3, per_node=1, spare=2, kill=[(1, 5 + turn), (2, 25 + turn)], model="rich", until=until
    )
    assert_same_history(job, undisturbed(3, "rich", until), until)
    assert_survivors_kept_their_process(job, [1, 2], 3)
