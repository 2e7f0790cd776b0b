"""What run.steps makes of global_batch, micro_batch and position; learning rates that follow from the batch."""

import pytest
import torch

import keepstep
from keepstep.torch.state.registry import Registry
from keepstep.torch.step.batch_plan import BatchPlan
from keepstep.torch.step.batch_sizes import Batches, checked_position
from keepstep.torch.step.learning_rate import FACTOR, scale_lr


def by_world(overrides, **defaults):
    return keepstep.scale_config(overrides, defaults)


def test_numbers_hold_at_every_world_size():
    batches = Batches.of(32, 4)
    assert batches.at(1) == batches.at(100) == (32, 4)
    assert batches.max_ranks == 8
    assert batches.feeds(8) and not batches.feeds(9)


def test_both_may_follow_from_the_world():
    config = by_world({"4-": {"global_batch": 64, "micro_batch": 2}}, global_batch=32, micro_batch=4)
    batches = Batches.of(config.value("global_batch"), config.value("micro_batch"))
    assert batches.at(3) == (32, 4) and batches.at(4) == (64, 2)
    assert batches.max_ranks == 32


def test_every_size_that_is_named_is_checked_against_the_other_argument():
    micro = by_world({3: {"micro_batch": 5}, "6-9": {"micro_batch": 4}}, micro_batch=2).value("micro_batch")
    with pytest.raises(keepstep.KeepstepError) as caught:
        Batches.of(32, micro)
    assert str(caught.value) == (
        "run.steps: for 3: global_batch=32 is no multiple of micro_batch=5; for 6-9: 8 micro-batches "
        "(global_batch=32 / micro_batch=4) cannot feed 9 ranks, each of which needs one"
    )


@pytest.mark.parametrize("batch, micro", [(32, 0), (0, 1), (32, -4), (7, 2), (32, 2.0), ("32", 2), (None, 2)])
def test_sizes_that_make_no_sense_are_refused(batch, micro):
    with pytest.raises(keepstep.KeepstepError, match=r"run\.steps: "):
        Batches.of(batch, micro)


def test_a_batch_that_changes_needs_a_position_that_a_peer_can_have():
    config = by_world({2: {"global_batch": 64}}, global_batch=32, micro_batch=2)
    changing = Batches.of(config.value("global_batch"), 2)
    registry = Registry()
    position = torch.zeros((), dtype=torch.int64)
    assert checked_position(None, registry, Batches.of(32, 2)) is None
    with pytest.raises(keepstep.KeepstepError, match="give position=, a field of the State"):
        checked_position(None, registry, changing)
    with pytest.raises(keepstep.KeepstepError, match="position= is no field of the State"):
        checked_position(position, registry, changing)
    registry.add("position", position)
    assert checked_position(position, registry, changing) is position
    for wrong in (torch.zeros(()), torch.zeros(2, dtype=torch.int64)):
        with pytest.raises(keepstep.KeepstepError, match="one int64 in main memory is needed"):
            checked_position(wrong, registry, changing)


def test_ranks_of_a_plan_take_what_follows_its_position_once():
    data = range(1 << 20)
    for world in (1, 2, 3, 5):
        taken = []
        for rank in range(world):
            plan = BatchPlan(data, 24, 2, False, None, 0, rank, world, (7, 1000))
            taken += plan.samples(7) + plan.samples(9)
        assert sorted(taken) == [*range(1000, 1024), *range(1048, 1072)]


# ---- learning rates ----


def parts(scheduler, **options):
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1, **options)
    return optimizer, scheduler(optimizer)


SCHEDULERS = [
    lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5),
    lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20),
    lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=30),
    lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20),
        ],
        [4],
    ),
]


@pytest.mark.parametrize("scheduler", SCHEDULERS, ids=["lambda", "step", "cosine", "one cycle", "sequential"])
def test_rates_are_the_schedules_times_the_factor_through_changes_and_back(scheduler):
    batches = [32, 32, 64, 64, 256, 8, 8, 32, 32, 64]
    optimizer, schedule = parts(scheduler)
    reference, unscaled = parts(scheduler)
    for batch in batches:
        for _ in range(2):  # the second time it changes nothing
            scale_lr(optimizer, 32, batch, "linear", schedule)
        expected = reference.param_groups[0]["lr"] * batch / 32
        assert optimizer.param_groups[0]["lr"] == pytest.approx(expected, rel=1e-12)
        for each in (optimizer, reference, schedule, unscaled):
            each.step()


def test_the_factor_travels_with_the_optimizer():
    here, schedule = parts(SCHEDULERS[0])
    scale_lr(here, 32, 128, "sqrt", schedule)
    mine = Registry()
    mine.add("optimizer", here)
    mine.add("schedule", schedule)
    flat = mine.flatten()
    there, other = parts(SCHEDULERS[0])
    theirs = Registry()
    theirs.add("optimizer", there)
    theirs.add("schedule", other)
    theirs.load_values(flat.values, flat.tensors)
    assert there.param_groups[0][FACTOR] == 2 and there.param_groups[0]["lr"] == 0.2
    scale_lr(there, 32, 128, "sqrt", other)
    assert there.param_groups[0]["lr"] == 0.2 and other.base_lrs == [0.2]


def test_a_rate_in_a_tensor_stays_the_same_tensor():
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.ones(2))], lr=torch.tensor(0.1))
    rate = optimizer.param_groups[0]["lr"]
    scale_lr(optimizer, 1, 4, "linear")
    assert optimizer.param_groups[0]["lr"] is rate and rate.item() == pytest.approx(0.4)


def test_a_group_that_came_later_is_not_scaled_by_half():
    optimizer, _ = parts(SCHEDULERS[1])
    scale_lr(optimizer, 1, 4, "linear")
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))], "lr": 0.1})
    with pytest.raises(keepstep.KeepstepError, match=r"param groups have the factors 1\.0, 4\.0"):
        scale_lr(optimizer, 1, 4, "linear")
