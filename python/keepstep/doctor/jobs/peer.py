"""A rank of the job that the doctors of several machines form, one per machine: measures the connections between them.

Everything goes through a job's data plane: a sender connects to the receiver's port, so what works here works in both
directions. Every rank prints the same line of JSON, for the doctor that started it.
"""

from __future__ import annotations

import itertools
import os
import socket
import time
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist

from keepstep.doctor.jobs import marks
from keepstep.doctor.network import own_address, resolve

BYTES = 32 << 20  # sent each way
PINGS = 16
MAX_PAIRS_OF_ALL = 6  # with more pairs, only those with rank 0 are measured


def gathered(value: Any) -> list[Any]:
    """`value` of every rank, in rank order."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def pattern(sender: int) -> torch.Tensor:
    return torch.arange(BYTES // 4, dtype=torch.int32).mul_(2 * sender + 3)


def greet_all(rank: int, world: int) -> None:
    """Sends a message from every rank to every other, which connects all of them in both directions."""
    others = [each for each in range(world) if each != rank]
    greetings = {each: torch.zeros(1, dtype=torch.int64) for each in others}
    works = [dist.isend(torch.tensor([rank]), each) for each in others]
    works += [dist.irecv(greetings[each], each) for each in others]
    for work in works:
        assert work is not None
        work.wait()
    for each, greeting in greetings.items():
        if int(greeting) != each:
            raise RuntimeError(f"a message from rank {each} says that it is from rank {int(greeting)}")


def offset(rank: int, here: int, there: int) -> tuple[float, float]:
    """How far the wall clock of `there` is ahead, and the fastest round trip, which measured it. Seconds, on `here`."""
    quickest = (0.0, float("inf"))
    for _ in range(PINGS):
        clock = torch.zeros(1, dtype=torch.float64)
        if rank == here:
            sent = time.time()
            dist.send(clock, there)
            dist.recv(clock, there)
            took = time.time() - sent
            if took < quickest[1]:
                quickest = (clock.item() - sent - took / 2, took)
        else:
            dist.recv(clock, here)
            dist.send(torch.tensor([time.time()], dtype=torch.float64), here)
    return quickest


def transfer(rank: int, sender: int, receiver: int) -> float:
    """Bytes per second, until the receiver's acknowledgment. Raises RuntimeError if some bytes are wrong."""
    done = torch.zeros(1)
    expected = pattern(sender)
    if rank == sender:
        begun = time.perf_counter()
        dist.send(expected, receiver)
        dist.recv(done, receiver)
        return BYTES / (time.perf_counter() - begun)
    came = torch.zeros_like(expected)
    dist.recv(came, sender)
    dist.send(done, sender)
    wrong = int((came != expected).sum())
    if wrong:
        raise RuntimeError(f"{wrong} of {came.numel()} numbers from rank {sender} came wrong")
    return 0.0


def measure(rank: int, here: int, there: int) -> dict[str, Any]:
    """The measurements of the pair, valid on `here`."""
    transfer(rank, here, there)  # opens the connections
    ahead, round_trip = offset(rank, here, there)
    out, back = transfer(rank, here, there), transfer(rank, there, here)
    rate = torch.tensor([back], dtype=torch.float64)
    if rank == there:
        dist.send(rate, here)
    else:
        dist.recv(rate, there)
    return {
        "ranks": [here, there],
        "ahead_s": ahead,
        "round_trip_s": round_trip,
        "bytes_per_s": [out, rate.item()],
    }


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("keepstep")
    rank, world = dist.get_rank(), dist.get_world_size()
    address = own_address(os.environ["MASTER_ADDR"]) or ""
    machines = gathered({"host": socket.gethostname(), "address": address})
    names = gathered([asdict(resolve(machine["host"])) for machine in machines])
    greet_all(rank, world)
    pairs = list(itertools.combinations(range(world), 2))
    if len(pairs) > MAX_PAIRS_OF_ALL:
        pairs = [(0, there) for there in range(1, world)]
    measured = []
    for here, there in pairs:  # one at a time: each has the network to itself
        if rank in (here, there):
            pair = measure(rank, here, there)
            if rank == here:
                measured.append(pair)
        dist.barrier()
    report = {"machines": machines, "names": names, "pairs": list(itertools.chain(*gathered(measured)))}
    marks.say(marks.PEERS, report)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
