"""When a fault fires: rank, step, phase, chance, and how often in the whole job."""

import functools
import itertools
import threading
import time
from collections import Counter
from types import SimpleNamespace

import pytest

from keepstep import _faults
from keepstep._engine import Fault
from keepstep._inject import Injector


def fault(**given):
    return Fault(**{"key": "0", "text": "a fault", "kind": "exception", "phase": "forward", "step": 1} | given)


class Job:
    """What all workers of a job share: the counters of the Store."""

    def __init__(self):
        self.counts = Counter()

    def worker(self, rank, faults, spare=False):
        return Worker(self, rank, faults, spare)


class Worker:
    def __init__(self, job, rank, faults, spare):
        self.job = job
        self.rank_or_none = rank
        self.spare = spare
        self.welcome = SimpleNamespace(seed=5)
        self.choose_flip = None
        self.told = []
        self.arrived = []
        self.engine = SimpleNamespace(take_injections=self._take, tell_injected=self._told)
        self.injector = Injector(self, faults)

    def _take(self):
        taken, self.arrived = self.arrived, []
        return taken

    def count(self, key):
        self.job.counts[key] += 1
        return self.job.counts[key]

    def claim_once(self, key):
        return self.count(key) == 1

    def _told(self, key, detail, last):
        self.told.append((key, detail, last))

    def fires(self, phase, step):
        try:
            self.injector.at(phase, step)
        except _faults.InjectedFault:
            return True
        return False

    def steps_of_fires(self, steps, phase="forward"):
        return [step for step in steps if self.fires(phase, step)]


def test_what_is_sent_during_a_rehearsal_fires_afterwards_and_not_in_it():
    worker = Job().worker(1, [], spare=True)
    worker.arrived = [fault(key="live/0/1", rank=1, step=None, phase="between", late=True)]
    usual, worker.injector = worker.injector, Injector(worker, [], listens=False)
    assert worker.steps_of_fires(range(1, 4), "between") == []
    worker.injector = usual
    assert worker.steps_of_fires(range(1, 4), "between") == [1]


def test_a_fault_fires_at_its_step_phase_and_rank_and_never_again():
    job = Job()
    faults = [fault(rank=1, step=3)]
    other, meant = job.worker(0, faults), job.worker(1, faults)
    assert other.steps_of_fires(range(1, 6)) == []
    assert not meant.fires("backward", 3)
    assert meant.steps_of_fires(range(1, 6)) == [3]
    assert meant.steps_of_fires(range(3, 6)) == []
    assert not meant.injector.active
    assert meant.told == [("0", "", True)]


def test_of_all_ranks_that_may_only_the_first_to_get_there_does():
    job = Job()
    workers = [job.worker(rank, [fault(step=2)]) for rank in range(4)]
    assert [rank for rank, worker in enumerate(workers) if worker.fires("forward", 2)] == [0]


def test_a_fault_for_spares_leaves_others_alone():
    job = Job()
    assert not job.worker(0, [fault(on_spare=True)]).fires("forward", 1)
    assert job.worker(0, [fault(on_spare=True)], spare=True).fires("forward", 1)


@pytest.mark.parametrize("phase", ["hydrate", "recovery", "build"])
def test_where_there_is_no_current_step_the_next_occasion_counts(phase):
    worker = Job().worker(0, [fault(phase=phase, step=3)])
    assert not worker.fires(phase, 2)
    assert worker.fires(phase, 7)


def test_a_fault_that_repeats_comes_once_a_step_whatever_is_redone():
    job = Job()
    faults = [fault(step=2, times=3)]
    worker = job.worker(0, faults)
    assert worker.steps_of_fires([1, 2, 2, 2, 3, 3]) == [2, 3]
    # Another process in its place, which the agent told that it is not over.
    replacement = job.worker(0, faults)
    assert replacement.steps_of_fires([3, 4, 5, 6]) == [4]
    assert [last for _, _, last in worker.told + replacement.told] == [False, False, True]


def test_chance_is_the_same_for_the_same_seed_and_differs_between_ranks():
    def steps(seed, rank):
        worker = Job().worker(rank, [fault(probability=0.1, seed=seed, times=1000)])
        return worker.steps_of_fires(range(1, 1001))

    assert steps(1, 0) == steps(1, 0)
    assert steps(1, 0) != steps(2, 0)
    assert steps(1, 0) != steps(1, 1)
    assert 60 < len(steps(1, 0)) < 140  # 0.1 of 1000; the draws are fixed by the seed
    once = Job().worker(0, [fault(probability=0.1, seed=1)])
    assert once.steps_of_fires(range(1, 1001)) == steps(1, 0)[:1]


def test_a_fault_that_comes_while_the_job_runs_is_seen_at_the_next_step():
    worker = Job().worker(2, [])
    assert not worker.fires("between", 10)
    worker.arrived = [fault(key="live/0/1", phase="between", step=None, rank=2, late=True)]
    assert not worker.fires("forward", 10)
    assert worker.fires("between", 11)


def test_a_slow_rank_waits_once_a_step_for_as_many_steps_as_asked(monkeypatch):
    pauses = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    clock = itertools.count()
    monkeypatch.setattr(time, "thread_time", lambda: float(next(clock)))  # it computes 1 s between two looks
    worker = Job().worker(0, [fault(kind="slow", step=3, factor=4.0, times=3)])
    for step in range(1, 10):
        for _micro_batch in range(2):
            worker.injector.at("forward", step)
    assert pauses == [3.0, 3.0, 3.0]
    assert not worker.injector.active
    assert len(worker.told) == 1


def test_a_rank_that_is_slow_for_good_stays_so(monkeypatch):
    pauses = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    worker = Job().worker(0, [fault(kind="slow", step=3, seconds=0.5)])
    for step in range(1, 10):
        worker.injector.at("forward", step)
    assert pauses == [0.5] * 7


def test_memory_runs_out_for_real_and_is_there_again_afterwards():
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(MemoryError, match="injected: oom"):
        _faults.exhaust_memory(64, kill=False, text="oom")
    assert resource.getrlimit(resource.RLIMIT_AS) == before
    assert len(bytearray(128 << 20)) == 128 << 20


def test_a_held_gil_lets_no_other_thread_run():
    times = []
    go, stop = threading.Event(), threading.Event()

    def count():
        while not stop.is_set():
            times.append(time.monotonic())
            go.set()

    thread = threading.Thread(target=count)
    thread.start()
    go.wait()
    _faults.hold_gil(0.5)
    stop.set()
    thread.join()
    # One call holds it nearly all the time; the thread may run before and after.
    assert max(after - before for before, after in itertools.pairwise(times)) > 0.4


def test_bits_are_flipped_one_at_a_time_and_where_the_seed_says():
    import torch

    from keepstep.torch.integrity import bit_flip

    model = torch.nn.Linear(4, 3)
    registry = SimpleNamespace(objects={"model": model, "note": 3})
    before = [parameter.detach().clone() for parameter in model.parameters()]
    versions = [parameter._version for parameter in model.parameters()]
    choose = functools.partial(bit_flip.choose, registry)
    flip = choose("parameter", 3, 7)
    assert flip.detail == choose("parameter", 3, 7).detail != choose("parameter", 4, 7).detail
    flip.carry_out()
    changed = 0
    for old, new in zip(before, model.parameters(), strict=True):
        difference = old.view(torch.int32) ^ new.detach().view(torch.int32)
        changed += sum(bin(value & 0xFFFFFFFF).count("1") for value in difference.flatten().tolist())
    assert changed == 1
    assert [parameter._version for parameter in model.parameters()] == versions
    with pytest.raises(Exception, match="no protected module has a gradient"):
        choose("gradient", 3, 7)
    model(torch.ones(2, 4)).sum().backward()
    assert choose("gradient", 3, 7).detail.startswith("model/")
