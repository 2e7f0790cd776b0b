"""Replicate in a world of one: hooks, buckets and the tree, against torch's own gradients."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import keepstep
from keepstep.torch import Replicate
from keepstep.torch.data_parallel.buckets import make_buckets


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Net(torch.nn.Module):
    """Three layers, of which `use` says which are used; the middle one is tied to nothing."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(1)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(6, 6, dtype=dtype) for _ in range(3))

    def forward(self, x, use=(0, 1, 2)):
        for index in use:
            x = torch.tanh(self.layers[index](x))
        return x.sum()


def inputs(count, dtype=torch.float32):
    generator = torch.Generator().manual_seed(7)
    return [(torch.randn(4, 6, generator=generator) * 3.0**i).to(dtype) for i in range(count)]


def leaf_gradients(model, batches, uses=None):
    """By parameter: its gradient of each micro-batch, zeros where it has none."""
    result = {name: [] for name, _ in model.named_parameters()}
    for i, x in enumerate(batches):
        model.zero_grad(set_to_none=True)
        model(x, *([uses[i]] if uses else [])).backward()
        for name, parameter in model.named_parameters():
            result[name].append(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
    model.zero_grad(set_to_none=True)
    return result


@pytest.mark.parametrize("bucket_cap_mb", [25.0, 0.00015], ids=["one bucket", "many buckets"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_gradients_are_the_tree_sum_of_the_micro_batches_divided_once(dtype, bucket_cap_mb):
    model = Net(dtype)
    batches = inputs(7, dtype)
    leaves = leaf_gradients(model, batches)
    replica = Replicate(model, reproducible=True, bucket_cap_mb=bucket_cap_mb)
    for _ in range(2):
        assert replica.begin_step(7) == range(7)
        for x in batches:
            assert all(p.grad is None for p in model.parameters())
            replica(x).backward()
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter.grad, keepstep.reduce.tree_sum(leaves[name], divisor=7)), name
        model.zero_grad(set_to_none=True)


def test_weights_divide_by_their_sum():
    model = Net()
    batches = inputs(3)
    leaves = leaf_gradients(model, batches)
    replica = Replicate(model, reproducible=True)
    replica.begin_step(3)
    for x, tokens in zip(batches, (5, 0, 6), strict=True):
        replica.weigh(tokens)
        replica(x).backward()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.grad, keepstep.reduce.tree_sum(leaves[name], divisor=11))


def test_what_some_micro_batches_do_not_use_counts_as_zero_and_what_none_uses_stays_none():
    model = Net()
    batches = inputs(4)
    uses = [(0,), (0, 2), (2, 0), (0,)]
    leaves = leaf_gradients(model, batches, uses)
    for bucket_cap_mb in (25.0, 0.00015):
        replica = Replicate(model, reproducible=True, bucket_cap_mb=bucket_cap_mb)
        replica.begin_step(4)
        for x, use in zip(batches, uses, strict=True):
            replica(x, use).backward()
        for name, parameter in model.named_parameters():
            if name.startswith("layers.1"):
                assert parameter.grad is None, name
            else:
                assert torch.equal(parameter.grad, keepstep.reduce.tree_sum(leaves[name], divisor=4)), name
        model.zero_grad(set_to_none=True)


def test_plain_mode_accumulates_under_no_sync_like_ddp():
    model = Net()
    batches = inputs(3)
    expected = leaf_gradients(model, batches)
    replica = Replicate(model)
    with replica.no_sync():
        replica(batches[0]).backward()
        replica(batches[1], (0, 2)).backward()
    replica(batches[2], (0, 1)).backward()  # layer 2 has its gradient from before
    model_gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    again = Net()
    for x, use in zip(batches, ((0, 1, 2), (0, 2), (0, 1)), strict=True):
        again(x, use).backward()
    for name, parameter in again.named_parameters():
        assert torch.equal(model_gradients[name], parameter.grad), name
    assert expected.keys() == model_gradients.keys()


def test_the_map_to_buckets_follows_from_the_parameters_alone():
    model = torch.nn.Sequential(Net(), Net(torch.float64), Net())
    model[2].layers[1].weight.requires_grad_(False)
    first = make_buckets(model, 200)
    shapes = [[tuple(p.shape) for p in bucket.parameters] for bucket in first]
    assert shapes == [[tuple(p.shape) for p in bucket.parameters] for bucket in make_buckets(model, 200)]
    assert all(len({p.dtype for p in bucket.parameters}) == 1 for bucket in first)
    mapped = [id(p) for bucket in first for p in bucket.parameters]
    assert sorted(mapped) == sorted(id(p) for p in model.parameters() if p.requires_grad)
    assert mapped[0] == id(list(model.parameters())[-1])


def test_a_new_wrapper_takes_over_the_buckets_and_the_old_one_is_silent():
    model = Net()
    old = Replicate(model, reproducible=True)
    new = Replicate(model, reproducible=True)
    assert new._buckets is old._buckets
    new.begin_step(1)
    new(inputs(1)[0]).backward()
    assert all(p.grad is not None for p in model.parameters())
    new.drop()
    model.zero_grad(set_to_none=True)
    model(inputs(1)[0]).backward()
    assert new.micro_batches_done == 1


def test_a_step_that_was_given_up_begins_anew():
    model = Net()
    batches = inputs(2)
    leaves = leaf_gradients(model, batches)
    replica = Replicate(model, reproducible=True)
    replica.begin_step(2)
    handle = model.layers[0].weight.register_hook(lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        replica(batches[0]).backward()
    handle.remove()
    with pytest.raises(keepstep.KeepstepError, match="begins before the last one ended"):
        replica(batches[0]).backward()
    model.zero_grad(set_to_none=True)
    replica.begin_step(2)
    for x in batches:
        replica(x).backward()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.grad, keepstep.reduce.tree_sum(leaves[name], divisor=2))


@pytest.mark.parametrize(
    "layer",
    [
        torch.nn.BatchNorm1d(6),
        torch.nn.SyncBatchNorm(6),
        torch.nn.InstanceNorm1d(6, track_running_stats=True),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_statistics_that_depend_on_the_rank_are_refused_by_name(layer):
    with pytest.raises(keepstep.KeepstepError, match=f"'1' is a {type(layer).__name__}"):
        Replicate(torch.nn.Sequential(torch.nn.Linear(6, 6), layer), reproducible=True)


def test_batch_norm_without_running_statistics_or_in_eval_is_fine():
    for layer in (torch.nn.BatchNorm1d(6, track_running_stats=False), torch.nn.BatchNorm1d(6).eval()):
        model = torch.nn.Sequential(torch.nn.Linear(6, 6), layer)
        replica = Replicate(model, reproducible=True)
        replica.begin_step(1)
        replica(inputs(1)[0]).sum().backward()


def test_a_buffer_that_forward_changes_is_refused_by_name():
    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(6, 1)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            self.seen += 1
            return self.linear(x).sum()

    replica = Replicate(Counting(), reproducible=True)
    replica.begin_step(1)
    with pytest.raises(keepstep.KeepstepError, match="forward changed the buffer 'seen'"):
        replica(inputs(1)[0]).backward()


def test_mistakes_in_the_order_of_calls_are_named():
    model = Net()
    replica = Replicate(model, reproducible=True)
    x = inputs(1)[0]
    with pytest.raises(keepstep.KeepstepError, match="before the step's micro-batches are known"):
        replica(x).backward()
    with pytest.raises(keepstep.KeepstepError, match=r"'layers.*' has a gradient from before the step"):
        replica.begin_step(1)
    model.zero_grad(set_to_none=True)
    replica.begin_step(1)
    with pytest.raises(keepstep.KeepstepError, match="under no_sync"), replica.no_sync():
        replica(x).backward()
    model.zero_grad(set_to_none=True)
    replica.begin_step(1)
    replica(x).backward()
    with pytest.raises(keepstep.KeepstepError, match="all 1 micro-batches of this rank had their backward pass"):
        replica(x).backward()
    model.zero_grad(set_to_none=True)
    model.layers[1].weight.requires_grad_(False)
    with pytest.raises(keepstep.KeepstepError, match=r"'layers.1.weight' does not require a gradient"):
        replica.begin_step(1)
    with pytest.raises(keepstep.KeepstepError, match="begin_step is for"):
        Replicate(Net()).begin_step(1)


def test_a_number_of_threads_that_follows_from_the_number_of_ranks_is_refused(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    torch.set_num_threads(2)
    with pytest.raises(keepstep.KeepstepError, match="OMP_NUM_THREADS"):
        Replicate(Net(), reproducible=True)


def test_checkpointing_without_reentry_is_fine_and_with_it_refused():
    model = Net()
    x = inputs(1)[0].requires_grad_()
    expected = leaf_gradients(model, [x])
    replica = Replicate(model, reproducible=True)
    replica.begin_step(1)

    def run(reentrant):
        hidden = torch.tanh(model.layers[0](x))
        hidden = checkpoint(lambda h: torch.tanh(model.layers[1](h)), hidden, use_reentrant=reentrant)
        torch.tanh(model.layers[2](hidden)).sum().backward()

    run(False)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.grad, expected[name][0]), name
    model.zero_grad(set_to_none=True)
    replica.begin_step(1)
    with pytest.raises(keepstep.KeepstepError, match="use_reentrant=False"):
        run(True)
