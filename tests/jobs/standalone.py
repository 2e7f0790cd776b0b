"""A rank that keepstep did not start: ``standalone.py WHAT``, with RANK and WORLD_SIZE in the environment."""

import os
import signal
import sys
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from datetime import timedelta

import torch
import torch.distributed as dist

what = sys.argv[1]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def say(*words):
    print(f"rank {rank}:", *words, flush=True)


def all_reduce():
    tensor = torch.full((3,), float(rank + 1))
    dist.all_reduce(tensor)
    assert tensor.tolist() == [world * (world + 1) / 2] * 3, tensor


if what == "gloo":  # only the Store is ours
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    assert not isinstance(store, (dist.TCPStore, dist.FileStore, dist.HashStore)), store
    all_reduce()
    store.set("large", b"x" * 60_000)
    assert store.get("large") == b"x" * 60_000
    dist.destroy_process_group()
    say("fine")
elif what == "keepstep":
    for _ in range(2):  # made anew after it was destroyed
        dist.init_process_group("keepstep", init_method="keepstep://")
        all_reduce()
        pair = dist.new_group([0, world - 1])
        if rank in (0, world - 1):
            dist.barrier(pair)
        half = dist.split_group(split_ranks=[[0], list(range(1, world))])
        value = torch.ones(1)
        dist.all_reduce(value, group=half)
        assert value.item() == (1 if rank == 0 else world - 1)
        dist.destroy_process_group()
    say("fine")
elif what == "killed":
    dist.init_process_group("keepstep", init_method="keepstep://")
    if rank == 1:
        all_reduce()
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        all_reduce()  # may be interrupted, too, before this rank saw its end
        dist.all_reduce(torch.ones(1 << 20))
    except RuntimeError as error:
        say("raised", error)
    try:
        dist.barrier()
    except RuntimeError:
        say("stays interrupted")
elif what == "raises":
    dist.init_process_group("keepstep", init_method="keepstep://")
    if rank == 1:
        all_reduce()
        raise ValueError("a bug of this rank")
    try:
        all_reduce()  # may be interrupted, too, before this rank saw its end
        dist.barrier()
    except RuntimeError as error:
        say("raised", error)
elif what == "aborted":
    dist.init_process_group("keepstep", init_method="keepstep://")
    if rank == 0:
        all_reduce()
        dist.distributed_c10d._abort_process_group()
    else:
        try:
            all_reduce()
            dist.all_reduce(torch.ones(1 << 20))
        except RuntimeError as error:
            say("raised", error)
elif what == "missing":
    if rank == 1:
        sys.exit(0)
    try:
        dist.init_process_group("keepstep", init_method="keepstep://", timeout=timedelta(seconds=1))
    except RuntimeError as error:
        say("raised", error)
elif what == "groups":  # more groups one after the other than there are places
    dist.init_process_group("keepstep", init_method="keepstep://")
    for _ in range(200):
        group = dist.new_group(list(range(world)))
        dist.barrier(group)
        dist.destroy_process_group(group)
    dist.destroy_process_group()
    say("fine")
elif what == "across":  # a Store over several nodes; with a marker: one rank fails in the first start
    for _ in range(2):  # made again after it was destroyed
        dist.init_process_group("gloo")
        store = dist.distributed_c10d._get_default_store()
        begun = store.add("begun", 1)
        assert begun <= world, "keys of an earlier start"
        store.set(f"of {rank}", str(rank) * 60_000)
        for other in range(world):
            assert store.get(f"of {other}") == str(other).encode() * 60_000
        all_reduce()
        if sys.argv[2:] and not os.path.exists(sys.argv[2]) and rank == world - 1:
            open(sys.argv[2], "w").close()
            sys.exit(1)
        dist.destroy_process_group()
    say("fine")
elif what == "agent_dies":
    store = next(dist.rendezvous("env://"))[0]
    for key in range(8):  # some are kept by each node
        store.set(f"{rank} {key}", "v")
        store.get(f"{1 - rank} {key}")
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(store.wait, [f"never {key}"], timedelta(seconds=60)) for key in range(8)]
        say("waits")
        failed = wait(waiting, return_when=FIRST_EXCEPTION).done
        say("raised", next(iter(failed)).exception())
        os._exit(0)  # the others wait for keys that are kept here
elif what == "never":
    store = next(dist.rendezvous("env://"))[0]
    try:
        store.wait(["never"], timedelta(seconds=2))
    except dist.DistStoreError as error:
        say("raised", error)
elif what == "generations":  # what a process holds must not grow with the number of groups it had
    import resource

    def held():
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[1])
        threads = len(os.listdir("/proc/self/task"))
        return len(os.listdir("/proc/self/fd")), threads, pages * resource.getpagesize() >> 20

    count = int(sys.argv[2])
    for number in range(count):
        dist.init_process_group("keepstep", init_method="keepstep://")
        all_reduce()
        work = dist.all_reduce(torch.ones(1000), async_op=True)
        work.get_future().wait()
        dist.barrier(dist.new_group(list(range(world))))
        dist.destroy_process_group()
        if number == count // 4:
            early = held()
    late = held()
    assert late[0] <= early[0] and late[1] <= early[1] and late[2] <= early[2] + 16, (early, late)
    say("fine", early, late)
