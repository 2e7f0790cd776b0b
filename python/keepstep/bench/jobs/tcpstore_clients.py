"""torch's TCPStore with many clients: the opponent in ``keepstep bench rendezvous``.

    tcpstore_clients.py serve
    tcpstore_clients.py clients PORT FIRST COUNT WORLD

Answers with JSON lines. A client is one TCPStore object with its own connection and thread, like a rank. After each
word on standard input every client of the process writes its address under a new key and reads the others' addresses:
``gets`` all of them one at a time, like Gloo's rendezvous; ``multi_get`` all of them with one request; ``neighbour``
only the next rank's.
"""

import json
import sys
import threading
import time
from datetime import timedelta

from torch.distributed import TCPStore

TIMEOUT = timedelta(seconds=600)
STACK_BYTES = 256 * 1024


def answer(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def serve() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
    answer(event="listening", port=store.port)
    sys.stdin.read()


def exchange(store: TCPStore, rank: int, world: int, how: str, turn: int) -> None:
    store.set(f"{turn}/{rank}", f"10.0.{rank >> 8}.{rank & 255}:20000".encode())
    if how == "gets":
        got = [store.get(f"{turn}/{peer}") for peer in range(world)]
    elif how == "multi_get":
        got = store.multi_get([f"{turn}/{peer}" for peer in range(world)])
    else:
        got = [store.get(f"{turn}/{(rank + 1) % world}")]
    assert all(value.startswith(b"10.0.") for value in got), got


def connect(port: int, count: int, world: int) -> list[TCPStore]:
    """Connects one at a time: TCPStore looks up the name of each connection's peer, and many at once wait for DNS."""
    return [TCPStore("127.0.0.1", port, world, False, timeout=TIMEOUT, wait_for_workers=False) for _ in range(count)]


def clients(port: int, first: int, count: int, world: int) -> None:
    from_ns = time.monotonic_ns()
    stores = connect(port, count, world)
    answer(event="connected", from_ns=from_ns, ns=time.monotonic_ns())
    threading.stack_size(STACK_BYTES)
    for turn, line in enumerate(sys.stdin):
        how = line.strip()
        go = threading.Event()
        ready = threading.Barrier(count + 1)
        failed: list[BaseException] = []

        def run(index: int, how: str = how, turn: int = turn, go: threading.Event = go) -> None:
            ready.wait()  # noqa: B023
            go.wait()
            try:
                exchange(stores[index], first + index, world, how, turn)
            except BaseException as error:
                failed.append(error)  # noqa: B023

        threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
        for thread in threads:
            thread.start()
        ready.wait()
        answer(event="ready")
        sys.stdin.readline()  # "go"
        go.set()
        for thread in threads:
            thread.join()
        if failed:
            answer(event="failed", because=repr(failed[0]))
        answer(event="exchanged", ns=time.monotonic_ns())


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    else:
        clients(*(int(word) for word in sys.argv[2:6]))
