"""Gradient norms: close to torch's, and the same bits however gradients lie in memory."""

import math

import pytest
import torch

from keepstep.torch import clip_grad_norm_, grad_norm


def parameters(dtype=torch.float32):
    generator = torch.Generator().manual_seed(3)
    result = [torch.nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in ((50, 30), (7,), (), (4, 5, 6), (9,))]
    for parameter in result[:-1]:
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(dtype)
    return result  # the last one has none


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("norm_type", [2.0, math.inf])
def test_the_norm_is_torchs(dtype, norm_type):
    ours = parameters(dtype)
    exact = [p.grad.double() for p in ours if p.grad is not None]
    expected = torch.linalg.vector_norm(torch.cat([g.flatten() for g in exact]), norm_type)
    assert math.isclose(grad_norm(ours, norm_type).item(), expected.item(), rel_tol=1e-12)


def test_strides_and_threads_do_not_change_a_bit():
    ours = parameters()
    before = grad_norm(ours)
    ours[0].grad = ours[0].grad.t().contiguous().t()
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 4):
            torch.set_num_threads(count)
            assert torch.equal(grad_norm(ours), before)
    finally:
        torch.set_num_threads(threads)


def test_clipping_scales_to_the_largest_norm_and_leaves_small_ones_alone():
    ours, theirs = parameters(), parameters()
    norm = clip_grad_norm_(ours, 0.5)
    expected = torch.nn.utils.clip_grad_norm_(theirs, 0.5)
    torch.testing.assert_close(norm.float(), expected)
    for mine, other in zip(ours, theirs, strict=True):
        if mine.grad is not None:
            torch.testing.assert_close(mine.grad, other.grad)
    small = [p.grad.clone() for p in ours[:-1]]
    clip_grad_norm_(ours, 100.0)
    assert all(torch.equal(a, p.grad) for a, p in zip(small, ours[:-1], strict=True))


def test_what_is_no_number_is_told_or_spreads_like_torchs():
    ours = parameters()
    ours[1].grad[2] = math.nan
    with pytest.raises(RuntimeError, match="norm of the gradients is nan"):
        clip_grad_norm_(ours, 1.0, error_if_nonfinite=True)
    clip_grad_norm_(ours, 1.0)
    assert all(p.grad.isnan().all() for p in ours[:-1])


def test_norms_without_a_fixed_order_and_sparse_gradients_are_refused():
    with pytest.raises(ValueError, match="norm_type 3"):
        grad_norm(parameters(), 3.0)
    sparse = torch.nn.Embedding(5, 2, sparse=True)
    sparse(torch.tensor([1])).sum().backward()
    with pytest.raises(TypeError, match="sparse"):
        grad_norm(sparse.parameters())
