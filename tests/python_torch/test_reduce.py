"""keepstep.reduce in one process, against the tree's definition."""

import random

import pytest
import torch

import keepstep

SEED = random.SystemRandom().randrange(2**32)


def spread(count, leaves, dtype, seed):
    """Random numbers over many powers of two, so that the order of a sum shows."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-12, 12, (leaves, count), generator=generator)
    return list((torch.randn(leaves, count, generator=generator, dtype=torch.float64) * 2.0**exponents).to(dtype))


def defined(leaves, begin, end):
    if end - begin == 1:
        return leaves[begin]
    left = 1
    while left * 2 < end - begin:
        left *= 2
    return defined(leaves, begin, begin + left) + defined(leaves, begin + left, end)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("count", [1, 8, 13, 24, 33])
def test_a_tree_sum_follows_the_definition_bit_for_bit(dtype, count):
    leaves = spread(1000, count, dtype, SEED)
    sums = leaves if dtype == torch.float64 else [leaf.float() for leaf in leaves]
    expected = defined(sums, 0, count)
    assert torch.equal(keepstep.reduce.tree_sum(leaves), expected.to(dtype)), f"seed {SEED}"
    assert torch.equal(keepstep.reduce.tree_sum(leaves, divisor=count), (expected / count).to(dtype)), f"seed {SEED}"


def test_the_order_matters_or_this_test_proves_nothing():
    leaves = spread(1000, 24, torch.float32, SEED)
    assert not torch.equal(keepstep.reduce.tree_sum(leaves), sum(leaves[1:], leaves[0])), f"seed {SEED}"


def test_a_sum_is_used_again_and_takes_any_strides():
    like = torch.zeros(4, 6)
    sums = keepstep.reduce.Sum(like=like)
    for step in range(3):
        leaves = [leaf.view(6, 4).t() for leaf in spread(24, 5, torch.float32, SEED + step)]
        sums.begin(5)
        assert sums.run == range(5)
        for leaf in leaves:
            sums.add(leaf)
        assert torch.equal(sums.all_reduce(weight=5), defined(leaves, 0, 5) / 5), f"seed {SEED + step}"
    assert sums.bytes <= 3 * like.numel() * 4


def test_mistakes_are_named():
    with pytest.raises(TypeError, match="int64 has no canonical order"):
        keepstep.reduce.Sum(like=torch.zeros(2, dtype=torch.int64))
    sums = keepstep.reduce.Sum(like=torch.zeros(2))
    with pytest.raises(RuntimeError, match=r"\[2, 5\) is no run"):
        sums.begin(4, range(2, 5))
    sums.begin(4, range(1, 3))
    with pytest.raises(ValueError, match=r"a leaf is torch.float32 \[3\]; the sum is torch.float32 \[2\]"):
        sums.add(torch.zeros(3))
    sums.add(torch.ones(2))
    with pytest.raises(keepstep.KeepstepError, match="leaf 2 of this rank's leaves 1 to 2 was not added"):
        sums.all_reduce()
    sums.add(torch.ones(2))
    with pytest.raises(RuntimeError, match=r"leaves \[1, 3\) of 4 are not the whole sum"):
        sums.all_reduce()
    with pytest.raises(RuntimeError, match="all added already"):
        sums.add(torch.ones(2))


def test_importing_keepstep_imports_no_torch():
    import subprocess
    import sys

    code = (
        "import keepstep, sys; assert 'torch' not in sys.modules; keepstep.reduce.share; assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
