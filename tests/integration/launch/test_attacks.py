"""What a stranger without the job's token does to its port, and to what goes over the network: the job goes on."""

import contextlib
import os
import random
import resource
import selectors
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from harness import JOBS, LIMIT_S, json_lines, open_files
from several_nodes import finish_nodes, free_port, kill, start_node, start_nodes, wait_for_steps

MAX_BYTES = 32 << 20  # that an attack may add to the launcher's memory
# The beginning of HTTP/2, and one header that never ends: what gRPC 1.51 put into its memory without limit.
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
HEADERS = b"\x00\x40\x00\x01\x00\0\0\0\x01" + b"\x00" * 0x4000
CONTINUATION = b"\x00\x40\x00\x09\x00\0\0\0\x01" + b"\x00" * 0x4000
# A TLS handshake record that announces 16 KiB, of which one byte at a time comes.
SLOW = b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03"


@pytest.fixture(autouse=True)
def many_descriptors():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def resident_bytes(pid):
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) << 10


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def connect(stack, port):
    connection = stack.enter_context(socket.socket())
    connection.connect(("127.0.0.1", port))
    connection.settimeout(LIMIT_S)
    return connection


def send_all(connection, *parts):
    """As far as the other side lets us."""
    with contextlib.suppress(OSError):
        for part in parts:
            connection.sendall(part)


def flood_of_headers(port):
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            send_all(connect(stack, port), HTTP2, HEADERS, *[CONTINUATION] * 256)


def garbage(port):
    source = random.Random(7)
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            send_all(connect(stack, port), source.randbytes(source.randrange(1, 100_000)))


def slow_loris(port):
    with contextlib.ExitStack() as stack:
        slow = [connect(stack, port) for _ in range(100)]
        for at in range(len(SLOW)):
            for connection in slow:
                send_all(connection, SLOW[at : at + 1])
            time.sleep(0.05)


def hung_up_on(connections, limit_s=LIMIT_S):
    """Waits until the other side has closed all of them."""
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection, selectors.EVENT_READ)
        deadline = time.monotonic() + limit_s
        while selector.get_map():
            assert time.monotonic() < deadline, f"{len(selector.get_map())} of {len(connections)} are still open"
            for key, _ in selector.select(1):
                with contextlib.suppress(ConnectionResetError):
                    if key.fileobj.recv(4096):
                        continue
                selector.unregister(key.fileobj)


def test_floods_cost_nothing_and_a_lost_node_comes_back_through_1100_idle_connections(tmp_path, undisturbed):
    port = free_port()
    until = 150
    what = [JOBS / "small.py", "--out", tmp_path, "--until", until, "--sleep", 0.1]
    options = ["--node-timeout", 120]
    nodes = [start_node(tmp_path, rank, f"127.0.0.1:{port}", *what, world=1, options=options) for rank in range(2)]
    launcher = nodes[0].process.pid
    metrics = tmp_path / "journal" / "metrics.jsonl"
    try:
        wait_for_steps(tmp_path, 10)
        memory, files = resident_bytes(launcher), descriptors(launcher)
        for attack in (flood_of_headers, garbage, slow_loris):
            attack(port)
            grown = resident_bytes(launcher) - memory
            assert grown <= MAX_BYTES, f"{attack.__name__}: {grown >> 20} MiB more"
            wait_for_steps(tmp_path, len(json_lines(metrics)) + 2)
        with contextlib.ExitStack() as stack:
            idle = [connect(stack, port) for _ in range(1100)]
            wait_for_steps(tmp_path, len(json_lines(metrics)) + 2)
            assert resident_bytes(launcher) - memory <= MAX_BYTES
            kill(nodes[1])
            nodes.append(
                start_node(tmp_path, 1, f"127.0.0.1:{port}", *what, world=1, options=options,
                           journal="again", log="again.txt")
            )  # fmt: skip
            hung_up_on(idle)  # they had 10 s to prove the key
        wait_for_steps(tmp_path, len(json_lines(metrics)) + 2, LIMIT_S)
        nodes[0].wait_for(lambda: descriptors(launcher) <= files, f"return to {files} descriptors", LIMIT_S)
        job = finish_nodes([nodes[0], nodes[2]])
    finally:
        for node in nodes:
            kill(node)
    reference = undisturbed(2, until=until)
    assert [line["loss"] for line in job.metrics] == [line["loss"] for line in reference.metrics], job.explain()
    assert {rank: note["final"] for rank, note in job.finals().items()} == {
        rank: note["final"] for rank, note in reference.finals().items()
    }
    assert job.events("refused"), "strangers are journalled"


def listening_ports(pid):
    """TCP ports of loopback where a process listens."""
    files = open_files(pid).values()
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return [int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in files]


@pytest.mark.parametrize("plane", ["tls", pytest.param("plain", marks=pytest.mark.long)])
def test_floods_of_a_ranks_own_port_cost_nothing_and_a_killed_rank_comes_back(tmp_path, undisturbed, plane):
    until = 100
    what = [JOBS / "small.py", "--out", tmp_path, "--until", until, "--sleep", 0.1]
    nodes = start_nodes(tmp_path, *what, world=1, options=["--data-plane", plane])
    metrics = tmp_path / "journal" / "metrics.jsonl"
    try:
        wait_for_steps(tmp_path, 10)
        ranks = [
            next(line["pid"] for line in json_lines(tmp_path / "journal" / name) if line["event"] == "spawned")
            for name in ("journal.jsonl", "journal.node1.jsonl")
        ]
        (port,) = listening_ports(ranks[0])
        memory, files = resident_bytes(ranks[0]), descriptors(ranks[0])
        for attack in (flood_of_headers, garbage, slow_loris):
            attack(port)
            grown = resident_bytes(ranks[0]) - memory
            assert grown <= MAX_BYTES, f"{attack.__name__}: {grown >> 20} MiB more"
            wait_for_steps(tmp_path, len(json_lines(metrics)) + 2)
        with contextlib.ExitStack() as stack:
            idle = [connect(stack, port) for _ in range(1100)]
            wait_for_steps(tmp_path, len(json_lines(metrics)) + 2)
            assert descriptors(ranks[0]) <= files + 64, "user code needs descriptors, too"
            os.kill(ranks[1], signal.SIGKILL)
            wait_for_steps(tmp_path, len(json_lines(metrics)) + 5)
            hung_up_on(idle)
        nodes[0].wait_for(lambda: descriptors(ranks[0]) <= files, f"return to {files} descriptors", LIMIT_S)
        job = finish_nodes(nodes)
    finally:
        for node in nodes:
            kill(node)
    assert job.exit_code == 0 and not job.events("restart"), job.explain()
    reference = undisturbed(2, until=until)
    assert [line["loss"] for line in job.metrics] == [line["loss"] for line in reference.metrics], job.explain()


ALL_MISCHIEF = ("change", "repeat", "drop", "reorder", "forge")


class Relay:
    """Between a node and the job: hands on records of TLS, until it is told to do some mischief to one."""

    def __init__(self, port):
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.mischief = None
        self.done = threading.Event()
        self._kept = b""
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self):
        self._listener.close()

    def _serve(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return  # closed
            try:
                far = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                near.close()  # node 0 does not listen yet; who comes tries again
                continue
            for source, sink, ours in ((near, far, True), (far, near, False)):
                threading.Thread(target=self._pump, args=(source, sink, ours), daemon=True).start()

    def _pump(self, source, sink, ours):
        with contextlib.suppress(OSError), source.makefile("rb") as stream:
            while header := stream.read(5):
                record = header + stream.read(int.from_bytes(header[3:5], "big"))
                sink.sendall(self._treat(record) if ours and self.mischief else record)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _treat(self, record):
        match self.mischief:
            case "change":
                record = record[:-1] + bytes([record[-1] ^ 1])
            case "repeat":
                record = record + record
            case "drop":
                record = b""
            case "reorder" if not self._kept:
                self._kept = record
                return b""
            case "reorder":
                record, self._kept = record + self._kept, b""
            case "forge":  # a record with nothing but zeros, of a length that is possible
                record = b"\x17\x03\x03\x00\x40" + bytes(64) + record
        self.mischief = None
        self.done.set()
        return record


@pytest.mark.parametrize(
    "some", [("change", "forge"), pytest.param(ALL_MISCHIEF, marks=pytest.mark.long)], ids="-".join
)
def test_a_relay_that_tampers_loses_the_node_and_nothing_else(tmp_path, undisturbed, some):
    port = free_port()
    until = 100
    what = [JOBS / "small.py", "--out", tmp_path, "--until", until, "--sleep", 0.1]
    options = ["--node-timeout", 120, "--node-faults", 100]
    first = start_node(tmp_path, 0, f"127.0.0.1:{port}", *what, world=1, options=options)
    nodes = [first]
    metrics = tmp_path / "journal" / "metrics.jsonl"

    def lost():
        return [line for line in json_lines(tmp_path / "journal" / "journal.jsonl") if line["event"] == "node_lost"]

    try:
        for times, mischief in enumerate(some):
            relay = Relay(port)
            named = f"through-{mischief}"
            nodes.append(
                start_node(tmp_path, 1, f"127.0.0.1:{relay.port}", *what, world=1, options=options,
                           journal=named, log=f"{named}.txt")
            )  # fmt: skip
            wait_for_steps(tmp_path, len(json_lines(metrics)) + 3, LIMIT_S)
            relay.mischief = mischief
            first.wait_for(lambda: len(lost()) > times, f"loss of the node to '{mischief}'", LIMIT_S)
            assert relay.done.is_set()
            assert nodes[-1].process.wait(LIMIT_S) == 1, nodes[-1].output()
            relay.close()
        nodes.append(
            start_node(tmp_path, 1, f"127.0.0.1:{port}", *what, world=1, options=options,
                       journal="directly", log="directly.txt")
        )  # fmt: skip
        job = finish_nodes([first, nodes[-1]])
    finally:
        for node in nodes:
            kill(node)
    assert job.exit_code == 0, job.explain()
    reference = undisturbed(2, until=until)
    assert [line["loss"] for line in job.metrics] == [line["loss"] for line in reference.metrics], job.explain()
    reasons = [line["because"] for line in lost()][: len(some)]
    assert all("is not what it sent" in because for because in reasons), reasons
