"""A CUDA job loses ranks: no step, no sample, no bit is lost, and survivors keep their process and their context."""

from pathlib import Path

import pytest
from cuda_jobs import UNTIL, run_cuda

from harness import assert_same_history, assert_survivors_kept_their_process, finish, start

JOBS = Path(__file__).parent / "jobs"
BY_HAND = ["--by-hand", "--backend", "cpu:keepstep,cuda:nccl"]


@pytest.mark.parametrize("phase", ["forward", "backward", "before_vote", "after_vote", "update", "between"])
def test_a_killed_rank_of_a_cuda_job_is_replaced_and_no_bit_changes(tmp_path, undisturbed, phase):
    inject = [f"kill:rank=1,step=3,phase={phase}", f"kill:rank=0,step=6,phase={phase}"]
    job = run_cuda(tmp_path, spares=1, inject=inject)
    assert_same_history(job, undisturbed("plain"), UNTIL)
    assert_survivors_kept_their_process(job, [1, 0], 2)
    assert not job.events("restart"), job.explain()


@pytest.mark.parametrize("reconfigure", ["0", "1"], ids=["made anew", "reconfigured"])
def test_batch_norm_dropout_and_a_scaler_survive_on_the_gpu_either_way(tmp_path, undisturbed, monkeypatch, reconfigure):
    monkeypatch.setenv("KEEPSTEP_NCCL_RECONFIGURE", reconfigure)
    inject = ["kill:rank=1,step=3,phase=backward", "kill:rank=0,step=7,phase=after_vote"]
    job = run_cuda(tmp_path, spares=1, inject=inject, model="rich")
    assert_same_history(job, undisturbed("rich"), UNTIL)
    assert_survivors_kept_their_process(job, [1, 0], 2)


def test_groups_made_by_hand_recover_on_the_gpu_too(tmp_path, undisturbed):
    inject = ["kill:rank=1,step=4,phase=backward"]
    job = run_cuda(tmp_path, spares=1, inject=inject, extra=BY_HAND)
    assert_same_history(job, undisturbed("plain"), UNTIL)
    assert_survivors_kept_their_process(job, [1], 2)


def test_four_ranks_that_share_what_gpus_there_are_lose_three(tmp_path, undisturbed):
    inject = [f"kill:rank={rank},step={step},phase=backward" for rank, step in ((3, 3), (1, 3), (0, 6))]
    job = run_cuda(tmp_path, world=4, spares=2, inject=inject, model="rich")
    assert_survivors_kept_their_process(job, [3, 1, 0], 4)
    assert_same_history(job, undisturbed("rich", world=4), UNTIL)


@pytest.mark.parametrize("extra", [(), ("--group",)], ids=["the world's", "a group's"])
def test_a_rank_that_hangs_in_a_collective_gets_out_by_the_abort_and_the_next_one_sums_rightly(tmp_path, extra):
    process, command = start(tmp_path, JOBS / "stuck.py", "--out", tmp_path, *extra, spares=1)
    job = finish(tmp_path, process, command)
    assert job.exit_code == 0, job.explain()
    ends = {note["rank"]: note for note in job.notes}
    assert set(ends) == {0, 1}, job.explain()
    assert ends[0]["entry"] == "recovery", "rank 0 kept its process" + job.explain()
    assert all(value == [2.0] for end in ends.values() for value in end["sums"]), job.explain()
    assert ends[0]["weights"] == ends[1]["weights"], job.explain()


def test_a_process_whose_gpu_context_is_spoilt_ends_and_is_replaced(tmp_path):
    process, command = start(tmp_path, JOBS / "stuck.py", "--out", tmp_path, "--illegal", spares=1)
    job = finish(tmp_path, process, command)
    assert job.exit_code == 0, job.explain()
    assert "cannot use its GPU any more" in job.output, job.explain()
    ends = {note["rank"]: note for note in job.notes}
    assert ends[0]["entry"] == "recovery" and ends[1]["entry"] == "replacement", job.explain()
    assert ends[0]["weights"] == ends[1]["weights"], job.explain()


def test_a_spare_that_builds_on_the_gpu_steps_in(tmp_path, undisturbed):
    inject = ["kill:rank=1,step=4,phase=backward", "kill:rank=0,step=7,phase=update"]
    job = run_cuda(tmp_path, spares=1, inject=inject, extra=["--build-on-device"])
    assert_same_history(job, undisturbed("plain"), UNTIL)
    assert_survivors_kept_their_process(job, [1, 0], 2)
