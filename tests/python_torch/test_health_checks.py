"""The checks a worker makes of itself."""

from types import SimpleNamespace

import pytest
import torch

from keepstep.torch.recovery import health


@pytest.mark.parametrize("threads", [1, 2])
def test_the_known_results_do_not_depend_on_the_number_of_threads(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        health.check_computation()
        health.check_memory()
    finally:
        torch.set_num_threads(before)


def test_the_default_device_of_the_script_is_not_what_is_checked():
    torch.set_default_device("meta")  # as "cuda" would, it has no products of int64
    try:
        health.check_computation()
        health.check_memory()
    finally:
        torch.set_default_device(None)


def test_every_sum_is_exact_so_the_known_results_hold_on_every_machine():
    products = health.products()
    exact = products[torch.int64]
    assert int(exact.abs().max()) < 2**24
    # No partial sum, in whatever order, leaves the whole numbers that float32 holds exactly.
    assert 15 * 14 * health.SIZE < 2**24
    for product in products.values():
        assert torch.equal(product.to(torch.int64), exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64], ids=str)
def test_one_wrong_bit_in_a_product_is_found_and_named(monkeypatch, dtype):
    right = health.products()

    def wrong():
        right[dtype].view(torch.uint8)[7, 11] ^= 1
        return right

    monkeypatch.setattr(health, "products", wrong)
    with pytest.raises(health.Unfit) as found:
        health.check_computation()
    assert str(dtype).removeprefix("torch.") in found.value.check
    assert found.value.limit == f"{health.KNOWN[dtype]:#018x}"


def test_two_runs_that_differ_are_found(monkeypatch):
    results = iter([1, 2])
    monkeypatch.setattr(health, "_curved", lambda: next(results))
    with pytest.raises(health.Unfit, match="float32 computation"):
        health.check_computation()


def test_too_little_memory_is_found_with_its_number(monkeypatch):
    monkeypatch.setattr(health, "available_bytes", lambda: 3 << 20)
    with pytest.raises(health.Unfit) as found:
        health.check_memory()
    assert (found.value.measured, found.value.limit) == ("3 MiB available", "64 MiB")


def test_what_ranks_send_each_other_arrives():
    health.check_data_plane(several_nodes=True)


def test_a_data_plane_that_loses_bytes_is_named(monkeypatch):
    monkeypatch.setattr(health._engine, "check_loopback", lambda tcp: "all_reduce: number 3 is 1, 2 is right" * tcp)
    health.check_data_plane(several_nodes=False)
    with pytest.raises(health.Unfit) as found:
        health.check_data_plane(several_nodes=True)
    assert found.value.check == "loopback of the data plane over TCP" and "number 3" in found.value.measured


def test_a_broken_gpu_of_a_job_that_uses_gpus_is_named(monkeypatch):
    monkeypatch.setattr(health._engine, "unfit_gpus", lambda: [("gpu 3: memory", "2 errors", "none")])
    health.check_gpus()  # there is none for this job
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    with pytest.raises(health.Unfit, match="gpu 3"):
        health.check_gpus()


class FakeSession:
    def __init__(self, check=None, on=True):
        self.welcome = SimpleNamespace(health_check=on, several_nodes=False)
        self.engine = SimpleNamespace(tell_unfit=lambda *told: self.told.append(told))
        self.users_health_check = check
        self.told = []


def test_a_failing_check_of_the_script_ends_the_process_and_says_why():
    def check():
        raise OSError("no fan")

    session = FakeSession(check)
    with pytest.raises(SystemExit) as ended:
        health.check(session)
    assert ended.value.code == health.EXIT_CODE
    assert session.told == [("health_check of the script", "OSError: no fan", "no exception", True)]
    off = FakeSession(check, on=False)
    health.check(off)
    assert off.told == []
