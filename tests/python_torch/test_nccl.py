"""The NCCL side without a GPU: what is set, the order of aborts, what an interruption does to a connection.

The backends are stand-ins of the shape of torch's ProcessGroupNCCL2. What only a GPU can show is in tests/gpu.
"""

import datetime
import threading
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from keepstep.torch.distributed import nccl, nccl_world
from keepstep.torch.tensors import cuda

LIMIT_S = 30  # a wait that takes longer is a failure of the test


class Backend:
    """Notes what is done to it; `log` is shared, so that orders show."""

    inside = 0

    def __init__(self, name, log, *, fails=False, gate=None):
        self._name, self.log, self.fails, self.gate = name, log, fails, gate
        self.error = SimpleNamespace(name="SUCCESS")
        self.supports_reconfigure = True
        self.options = SimpleNamespace(enable_reconfigure=True)

    def name(self):
        return self._name

    def get_error(self):
        return self.error

    def abort(self):
        Backend.inside += 1
        self.log.append((self._name, Backend.inside))
        if self.gate is not None:
            assert self.gate.wait(LIMIT_S)
        Backend.inside -= 1
        if self.fails:
            raise RuntimeError("no such communicator")

    def get_reconfigure_handle(self):
        return f"{self._name}:handle"

    def reconfigure(self, options):
        self.log.append((options.uuid, options.handles))
        if self.gate is not None:
            assert self.gate.wait(LIMIT_S)
        return SimpleNamespace(wait=lambda: self.log.append("connected"))


def test_every_communicator_is_aborted_once_in_order_and_never_two_at_a_time():
    log, interrupted, gate = [], threading.Event(), threading.Event()
    backends = [Backend(f"nccl{n}", log, gate=gate) for n in range(3)]
    watches = [nccl.AbortWatch(lambda: interrupted.wait(LIMIT_S), lambda: backends) for _ in range(2)]
    assert log == []
    interrupted.set()
    gate.set()
    for watch in watches:
        assert watch.leave() == backends
    mine = [name for name, _ in log]
    assert sorted(mine) == sorted(["nccl0", "nccl1", "nccl2"] * 2)
    assert {inside for _, inside in log} == {1}, "two aborts at the same time deadlock in NCCL"


def test_an_abort_that_fails_does_not_keep_the_others_from_theirs(capsys):
    log, interrupted = [], threading.Event()
    backends = [Backend("nccl0", log, fails=True), Backend("nccl1", log)]
    watch = nccl.AbortWatch(interrupted.wait, lambda: backends)
    interrupted.set()
    watch.leave()
    assert [name for name, _ in log] == ["nccl0", "nccl1"]
    assert watch.failures == ["nccl0: RuntimeError: no such communicator"]
    assert "no such communicator" in capsys.readouterr().err


def test_a_group_that_is_finished_after_the_interruption_is_aborted_too():
    log, interrupted, looked = [], threading.Event(), threading.Semaphore(0)
    backends = [Backend("nccl0", log)]

    def find():
        looked.release()
        return list(backends)

    watch = nccl.AbortWatch(interrupted.wait, find)
    interrupted.set()
    assert looked.acquire(timeout=LIMIT_S)
    backends.append(Backend("nccl1", log))
    watch.leave()
    assert [name for name, _ in log] == ["nccl0", "nccl1"]


def test_the_end_of_the_job_aborts_nothing():
    log = []

    def wait():
        raise SystemExit

    nccl.AbortWatch(wait, lambda: [Backend("nccl0", log)]).leave()
    assert log == []


def test_an_interruption_gets_a_rank_out_of_a_connection_that_never_comes_and_undoes_it_if_it_comes_late():
    gate, begun, undone = threading.Event(), threading.Event(), threading.Event()

    def connect():
        begun.set()
        assert gate.wait(LIMIT_S)
        return "late"

    def undo(what):
        assert what == "late"
        undone.set()

    with pytest.raises(nccl.Abandoned):
        nccl.interruptible(connect, begun.is_set, undo)
    assert not undone.is_set()
    gate.set()
    assert undone.wait(LIMIT_S)


def test_a_connection_gives_its_result_or_its_error():
    assert nccl.interruptible(lambda: 5, lambda: False, print) == 5
    with pytest.raises(ZeroDivisionError):
        nccl.interruptible(lambda: 1 // 0, lambda: False, print)


def test_a_world_is_reconfigured_among_the_handles_of_all_ranks():
    log = []
    backend = Backend("nccl2", log)
    options = SimpleNamespace()
    nccl_world.reconfigure(backend, 7, lambda mine: [mine, "other"], lambda: False, options)
    assert log == [(7, ["nccl2:handle", "other"]), "connected"]
    assert nccl_world.is_reconfigurable(backend)
    backend.options.enable_reconfigure = False
    assert not nccl_world.is_reconfigurable(backend)


def test_what_would_end_survivors_is_replaced_and_named():
    given = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3", "TORCH_NCCL_RANKS_PER_ROOT": "16", "OTHER": "x"}
    assert nccl.set_environment(256, True, given) == ["TORCH_NCCL_ASYNC_ERROR_HANDLING=3"]
    assert given["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"
    assert given["TORCH_NCCL_RANKS_PER_ROOT"] == "16", "the user's choice"
    assert nccl.set_environment(256, True, given) == []
    from_the_agent = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
    assert nccl.set_environment(256, True, from_the_agent) == []
    assert from_the_agent["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"

    plain = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
    assert nccl.set_environment(256, False, plain) == []
    assert plain["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "1", "without recovery torch's own handling is all there is"


def test_roots_grow_with_the_square_root_of_the_world():
    assert [nccl.ranks_per_root(world) for world in (1, 32, 1024, 4096, 16384)] == [32, 32, 32, 64, 128]
    for world in range(1, 20000, 97):
        ranks = nccl.ranks_per_root(world)
        assert ranks >= 32 and (ranks - 1) ** 2 < max(world, 33**2)


def test_an_error_of_nccl_is_the_interruptions_if_one_follows():
    asked = iter([False, False, True])
    assert nccl.wait_for_news(dist.DistBackendError("NCCL error"), lambda: next(asked))
    assert not nccl.wait_for_news(dist.DistBackendError("NCCL error"), lambda: False, limit_s=0.1)
    assert not nccl.wait_for_news(ValueError("the user's"), lambda: False)


def test_a_rank_whose_communicator_failed_does_not_vote():
    good, bad = Backend("nccl2", []), Backend("nccl2", [])
    cuda.settle([], [good])
    bad.error = SimpleNamespace(name="COMM_ERROR")
    with pytest.raises(dist.DistBackendError, match="COMM_ERROR before the vote"):
        cuda.settle([], [good, bad])


def test_the_store_answers_what_nccls_start_asks_of_it():
    from keepstep.torch.distributed.store import AgentStore

    class Kept(AgentStore):
        def __init__(self):
            super().__init__()
            self.kept, self.asked = {}, []

        def _request(self, op, key, value, timeout_ms):
            self.asked.append(op)
            if op == "set":
                self.kept[key] = value
            if op == "compare_set":
                size, _, rest = value.partition(b":")
                return True, False, True, self.kept.setdefault(key, rest[int(size) :])
            return True, False, True, self.kept.get(key, b"")

    kept = Kept()
    store = dist.PrefixStore("0/", dist.PrefixStore("cuda/", kept))
    identity = bytes(range(128))  # an id of NCCL: any bytes, zeros among them
    store.set("nccl_storekey_0_0", identity)
    store.set("nccl_storekey_0_1", identity[::-1])
    keys = ["nccl_storekey_0_0", "nccl_storekey_0_1"]
    store.wait(keys, datetime.timedelta(seconds=5))
    assert store.multi_get(keys) == [identity, identity[::-1]]
    assert store.compare_set("claimed", "", "me") == b"me"
    assert store.compare_set("claimed", "", "other") == b"me"


@pytest.mark.skipif(not nccl.install(), reason="this torch makes NCCL's backends without a plug-in")
def test_torchs_nccl_is_made_through_the_hook_and_outside_of_a_job_as_ever():
    creator = dist.Backend._plugins["NCCL"].creator_fn
    made = []
    hook = nccl._creator(lambda options, backend_options: made.append((options, backend_options)) or "backend")
    assert hook("options", "more") == "backend"
    assert made == [("options", "more")]
    nccl.install()
    assert dist.Backend._plugins["NCCL"].creator_fn is creator, "installed once"


def test_seeds_reach_a_gpu_that_is_used_later(monkeypatch):
    from keepstep.torch import seeds

    queued, seeded = [], []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "_lazy_call", lambda function, **_: queued.append(function))
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    monkeypatch.setattr(seeds, "_asked", False)
    for value in (1, 2, 3):
        seeds.seed_all(value)
    assert seeded == [] and len(queued) == 1
    queued[0]()
    assert seeded == [3]
