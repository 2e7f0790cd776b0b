"""Several memory servers: a lost node's checkpoints are read from their copies. Nodes are runtime folders here."""

import os
import secrets
import socket
import subprocess
import sys
import time

import pytest

from keepstep import _checkpoint
from memory_nodes import JOB, finished

pytestmark = pytest.mark.long


def free_ports(count):
    held = [socket.socket() for _ in range(count)]
    for each in held:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


@pytest.fixture
def pair(nodes):
    """Two nodes whose servers, when they are started, know each other; both have the whole list, itself included."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    common = {"KEEPSTEP_MEMORY_PEERS": ",".join(addresses), "KEEPSTEP_TOKEN": secrets.token_hex(32)}
    made = [nodes(KEEPSTEP_MEMORY_LISTEN=address, **common) for address in addresses]
    for node in made:
        node.memory("serve", "--background")
    return made


def wait_until_copied(node):
    while True:
        others = [peer for peer in node.status()["peers"] if not peer["self"]]
        if all(peer["connected"] and peer["waiting"] == 0 for peer in others):
            return
        time.sleep(0.02)


def test_a_lost_node_s_checkpoint_is_resumed_from_its_copy_and_its_new_server_reads_it_too(pair):
    first, second = pair
    finished(first.torchrun(3, "save", "memory://run", 1, 3, "sync", "keep=2", "end=1"))
    wait_until_copied(first)
    first.kill_server()
    # On the other node, from the copy; then on the first one, whose new server is empty.
    assert "loaded 3 on 2 ranks, equal" in finished(second.torchrun(2, "load", "memory://run", 3))
    assert "loaded 3 on 1 ranks, equal" in finished(first.torchrun(1, "load", "memory://run", 3))
    # The job goes on on the second node, and the first one has a copy of that.
    finished(second.torchrun(2, "save", "memory://run", 4, 4, "sync", "keep=2", "end=1"))
    wait_until_copied(second)
    second.kill_server()
    assert "loaded 4 on 2 ranks, equal" in finished(first.torchrun(2, "load", "memory://run", 4))


def test_ranks_of_two_nodes_save_one_checkpoint_each_to_its_own_server(pair):
    port = free_ports(1)[0]

    def both(*arguments):
        jobs = [
            node.start([
                *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(rank)),
                *("--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", str(port)),
                *(str(JOB), *map(str, arguments)),
            ])
            for rank, node in enumerate(pair)
        ]  # fmt: skip
        return "".join(finished(job) for job in jobs)

    both("save", "memory://run", 1, 2, "sync", "end=1")
    own = [sum(version["objects"] for version in node.status()["destinations"][0]["versions"]) for node in pair]
    assert own == [12, 12]  # each has the files of both: its own, and copies
    assert "loaded 2 on 4 ranks, equal" in both("load", "memory://run", 2)
    for node in pair:
        wait_until_copied(node)
    pair[0].kill_server()
    assert "loaded 2 on 3 ranks, equal" in finished(pair[1].torchrun(3, "load", "memory://run", 2))


def store_of(node, code, *arguments):
    return subprocess.run(
        [sys.executable, "-c", f"import sys; from keepstep import _checkpoint as c; {code}", *arguments],
        env=node.environment, capture_output=True, text=True, timeout=120, check=True,
    ).stdout  # fmt: skip


def test_only_what_a_peer_lacks_is_sent(pair):
    first, second = pair
    code = "s = c.open_store('memory://run'); [s.put(k, bytes(8 << 20)) for k in sys.argv[1:]]"
    store_of(first, code, "a", "b")
    wait_until_copied(first)
    store_of(first, code, "c")
    wait_until_copied(first)
    (peer,) = [peer for peer in first.status()["peers"] if not peer["self"]]
    assert peer["copied"] == 3 and peer["sent_bytes"] == 4 << 20  # two chunks, which are the same
    listed = "print([f.key for f in c.open_store('memory://run').list('')])"
    assert store_of(second, listed) == "['a', 'b', 'c']\n"


def test_what_is_removed_is_removed_everywhere(pair):
    first, second = pair
    put = "s = c.open_store('memory://run'); s.put(sys.argv[1], b'x')"
    store_of(first, put, "a")
    store_of(second, put, "b")
    for node in pair:
        wait_until_copied(node)
    store_of(first, "s = c.open_store('memory://run'); s.remove('a'); s.remove('b')")
    for node in pair:
        wait_until_copied(node)
        assert store_of(node, "print(c.open_store('memory://run').list(''))") == "[]\n"


def test_an_owner_of_the_other_node_is_seen_and_a_job_that_was_taken_over_notices(pair):
    first, second = pair
    claim = "o = c.Owner(c.open_store('memory://run'), sys.argv[1]); print(o.token, flush=True)"
    held = subprocess.Popen(
        [sys.executable, "-c", "import sys; from keepstep import _checkpoint as c; " + claim
         + "; sys.stdin.readline()\ntry: o.renew()\nexcept c.Error as error: print(error.code, flush=True)", "job"],
        env=first.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert held.stdout.readline() == "1\n"
    with pytest.raises(subprocess.CalledProcessError) as refused:
        store_of(second, claim, "another")
    assert "belongs to job 'job'" in refused.value.stderr
    assert store_of(second, claim, "job") == "2\n"  # another start of the same job
    held.stdin.write("\n")
    held.stdin.close()
    assert held.stdout.read() == "ABORTED\n"
    held.wait()
    held.stdout.close()


def test_garbage_and_strangers_get_nothing(pair, nodes):
    first, second = pair
    store_of(first, "c.open_store('memory://run').put('a', b'secret')")
    address = first.status()["address"]
    host, port = address.split(":")
    for garbage in (b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096), b"\x16\x03\x01" + os.urandom(600)):
        with socket.create_connection((host, int(port)), 10) as connection:
            connection.sendall(garbage)
            connection.shutdown(socket.SHUT_WR)
            received = b"".join(iter(lambda c=connection: c.recv(4096), b""))
            assert len(received) < 64 and b"secret" not in received  # an alert, or nothing
    # A server with another token.
    stranger = nodes(KEEPSTEP_MEMORY_PEERS=address, KEEPSTEP_TOKEN=secrets.token_hex(32))
    stranger.memory("serve", "--background")
    while not (peer := stranger.status()["peers"][0])["failure"]:
        time.sleep(0.02)
    assert not peer["connected"]
    assert store_of(stranger, "print(c.open_store('memory://run').list(''))") == "[]\n"
    assert first.status()["refused_strangers"] >= 4
    for node in (first, second):
        wait_until_copied(node)
    assert store_of(second, "print(c.open_store('memory://run').read_all('a', 9))") == "b'secret'\n"


def test_a_url_of_memory_needs_no_server_to_be_checked():
    assert _checkpoint.open_store("memory://run").describe() == "memory://run"
