"""A bit that flips silently in tensors on a GPU is caught before it counts; `--check` changes no bit."""

import pytest
from cuda_jobs import UNTIL, run_cuda

from harness import assert_same_history, assert_survivors_kept_their_process, corruptions


def test_a_gradient_on_a_gpu_that_differs_never_commits_and_its_rank_is_replaced(tmp_path, undisturbed):
    faults = ["flip:rank=1,step=4,what=gradient,seed=2", "flip:rank=2,step=7,what=gradient,seed=5"]
    job = run_cuda(tmp_path, world=3, spares=1, inject=faults, options=["--digests", "on"])
    assert corruptions(job) == [(4, "gradients", [1]), (7, "gradients", [2])], job.explain()
    assert_survivors_kept_their_process(job, [1, 2], 3)
    assert_same_history(job, undisturbed(world=3), UNTIL)


def test_a_parameter_on_a_gpu_that_differs_is_found_before_the_update(tmp_path, undisturbed):
    fault = "flip:rank=2,step=6,what=parameter,seed=2,phase=between"
    job = run_cuda(tmp_path, world=3, spares=1, inject=[fault], options=["--digest-every", 1])
    assert corruptions(job) == [(6, "state", [2])], job.explain()
    assert_same_history(job, undisturbed(world=3), UNTIL)


@pytest.mark.parametrize("model", ["plain", "rich"])
def test_checking_every_step_finds_nothing_wrong_and_changes_no_bit(tmp_path, undisturbed, model):
    fault = "kill:rank=0,step=5,phase=backward"
    job = run_cuda(tmp_path, spares=1, inject=[fault], model=model, options=["--check"])
    assert_same_history(job, undisturbed(model), UNTIL)
