"""DDP's buckets: a step has the same layout whether its wrapper is new (after a fault) or not."""

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from keepstep.torch.data_parallel import replicas

STEPS = 3


@pytest.fixture(autouse=True)
def process_group():
    replicas.track()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def model_of(layers):
    torch.manual_seed(0)
    return torch.nn.Sequential(*[torch.nn.Linear(300, 300) for _ in range(layers)])


def layouts_of(model, **options):
    """The parameters in each bucket, for each step."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    seen = []

    def record(_, bucket):
        seen[-1].append([names[id(parameter)] for parameter in bucket.parameters()])
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    wrapper = DistributedDataParallel(model, bucket_cap_mb=0.8, **options)
    wrapper.register_comm_hook(None, record)
    for _ in range(STEPS):
        seen.append([])
        wrapper(torch.randn(2, 300)).sum().backward()
    return seen


@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("unused", [False, True])
def test_the_layout_is_final_when_the_wrapper_is_made(views, unused):
    model = model_of(6)
    first, *later = layouts_of(model, gradient_as_bucket_view=views, find_unused_parameters=unused)
    assert len(first) > 1
    assert later == [first] * (STEPS - 1)
    assert layouts_of(model, gradient_as_bucket_view=views, find_unused_parameters=unused)[0] == first


def test_buckets_fill_in_the_order_in_which_gradients_come():
    first = layouts_of(model_of(4))[0]
    expected = [f"{layer}.{what}" for layer in (3, 2, 1, 0) for what in ("bias", "weight")]
    assert [name for bucket in first for name in bucket] == expected


def test_frozen_and_shared_parameters():
    model = model_of(3)
    model[0].weight.requires_grad_(False)
    model[2].weight = model[1].weight
    first, *later = layouts_of(model)
    assert later == [first] * (STEPS - 1)
    assert sorted(name for bucket in first for name in bucket) == ["0.bias", "1.bias", "1.weight", "2.bias"]


def test_ddp_still_names_the_parameters_without_gradients():
    model = torch.nn.ModuleDict({name: torch.nn.Linear(2, 2) for name in ("first", "used", "last")})
    model.forward = lambda batch: model["used"](batch)
    dist.set_debug_level(dist.DebugLevel.INFO)
    try:
        wrapper = DistributedDataParallel(model)
        wrapper(torch.randn(2, 2)).sum().backward()
        with pytest.raises(RuntimeError) as failure:
            wrapper(torch.randn(2, 2))
    finally:
        dist.set_debug_level(dist.DebugLevel.OFF)
    named = str(failure.value).partition("did not receive grad for rank 0: ")[2].splitlines()[0]
    assert sorted(named.split(", ")) == ["first.bias", "first.weight", "last.bias", "last.weight"]
