"""ReduceLROnPlateau whose metric waits for the next commit, without a job."""

from types import SimpleNamespace

import pytest
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from keepstep import KeepstepError
from keepstep.torch.prepared.plateau import PreparedPlateau


def schedule():
    """Each metric halves the rate, which is 1 at first."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    return ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=100)


def run_at(version, functions=0, rehearsing=False):
    return SimpleNamespace(
        version=version, rehearsing=rehearsing, _check_interrupted=lambda: None,
        _session=SimpleNamespace(functions=functions),
    )  # fmt: skip


def commit(plateau, run):
    for move in plateau.moves():
        move()
    run.version += 1


def rate(plateau):
    return plateau.optimizer.param_groups[0]["lr"]


def test_the_next_commit_moves_it_once():
    run = run_at(3)
    plateau = PreparedPlateau(schedule()).enter(run)
    plateau.step(torch.tensor(5.0))
    assert rate(plateau) == 1
    commit(plateau, run)
    assert rate(plateau) == 0.5
    commit(plateau, run)
    assert rate(plateau) == 0.5 and plateau.get_last_lr() == [0.5]


def test_it_is_the_optimizers_schedule_for_whoever_asks():
    plain = schedule()
    plateau = PreparedPlateau(plain)
    plateau.patience = 7
    assert isinstance(plateau, ReduceLROnPlateau)
    assert plain.patience == plateau.patience == 7 and plateau.best == plain.best


def test_another_entry_knows_the_metric_and_may_give_it_again():
    plain, run = schedule(), run_at(3)
    PreparedPlateau(plain).enter(run).step(5)
    plateau = PreparedPlateau(plain).enter(run)
    plateau.step(5)
    commit(plateau, run)
    assert rate(plateau) == 0.5
    back = PreparedPlateau(plain).enter(run_at(3))  # sharded state may go back by a step
    assert len(back.moves()) == 1


def test_a_spare_that_rehearses_is_given_nothing():
    plateau = PreparedPlateau(schedule()).enter(run_at(0, rehearsing=True))
    plateau.step(5)
    assert not plateau.moves()


def test_a_veto_puts_the_move_off():
    run = run_at(3)
    plateau = PreparedPlateau(schedule()).enter(run)
    plateau.step(5)
    run.version += 1  # nothing moved
    plateau.vetoed()
    commit(plateau, run)
    assert rate(plateau) == 0.5 and not plateau.moves()


def test_what_the_last_commit_left_moves_at_the_end():
    run = run_at(3)
    plateau = PreparedPlateau(schedule()).enter(run)
    plateau.step(5)
    plateau.finish()
    assert rate(plateau) == 0.5 and not plateau.moves()
    plateau.finish()
    assert rate(plateau) == 0.5
    with pytest.raises(KeepstepError, match="no training is under way"):
        plateau.step(5)


def test_the_next_function_begins_with_the_last_metric_of_the_one_before():
    plain = schedule()
    PreparedPlateau(plain).enter(run_at(3)).step(5)
    late = PreparedPlateau(plain).enter(run_at(0, functions=1))
    assert len(late.moves()) == 1
    commit(late, late._run)
    assert rate(late) == 0.5 and not PreparedPlateau(plain).enter(run_at(3, functions=1)).moves()


def test_a_checkpoint_has_the_metric():
    first = PreparedPlateau(schedule()).enter(run_at(3))
    first.step(5)
    state = first.state_dict()
    for plain in (schedule(), schedule()):
        plateau = PreparedPlateau(plain)
        plateau.load_state_dict(state)
        run = run_at(0)
        commit(plateau.enter(run), run)
        assert rate(plateau) == 0.5 and "keepstep_metric" not in plateau.state_dict()
    plain = schedule()
    plain.load_state_dict(state)  # by who knows nothing of this
    plateau = PreparedPlateau(plain).enter(run_at(0))
    assert len(plateau.moves()) == 1 and "keepstep_metric" not in plain.state_dict()


def test_two_metrics_between_two_commits_are_refused():
    plateau = PreparedPlateau(schedule()).enter(run_at(3))
    plateau.step(5)
    with pytest.raises(KeepstepError, match="called twice after step 3"):
        plateau.step(6)


def test_a_metric_that_is_no_number_counts_as_it_does_without_keepstep():
    plain, run = schedule(), run_at(0)
    plateau = PreparedPlateau(plain).enter(run)
    plateau.step(float("nan"))
    commit(plateau, run)
    assert rate(plateau) == 0.5
