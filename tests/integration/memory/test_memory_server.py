"""The memory server as a process: who starts it, when it ends, what it refuses."""

import concurrent.futures
import os
import select
import subprocess
import sys
import time

import pytest

from keepstep import _checkpoint

pytestmark = pytest.mark.long

OPEN = "import sys; from keepstep import _checkpoint as c; s = c.open_store(sys.argv[1]); "


def run(node, code, *arguments, user=None):
    return subprocess.run(
        [sys.executable, "-c", OPEN + code, "memory://run", *map(str, arguments)],
        env=node.environment, capture_output=True, text=True, timeout=120, user=user,
    )  # fmt: skip


def wait_until_dead(pid):
    try:
        ends = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ready, _, _ = select.select([ends], [], [], 60)
    os.close(ends)
    assert ready, "it does not end"


def test_many_first_writers_start_one_server(nodes):
    node = nodes()
    assert node.memory("status", check=False).returncode == 1
    code = "s.put(sys.argv[2], b'x')"
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for ran in pool.map(lambda number: run(node, code, f"key-{number}"), range(8)):
            assert ran.returncode == 0, ran.stderr
    listed = run(node, "print(len(s.list('')))")
    assert listed.stdout == "8\n", listed.stderr
    servers = subprocess.run(["pgrep", "-f", "keepstep memory serve"], capture_output=True, text=True).stdout.split()
    ours = [pid for pid in servers if node.folder in open(f"/proc/{pid}/environ").read()]
    assert ours == [str(node.pid())]


def test_it_is_in_a_session_of_its_own_and_holds_nothing_of_its_starter(nodes):
    node = nodes()
    # communicate() in run() waits for the end of the output: it would hang if the server held a pipe's end.
    assert run(node, "s.put('a', b'x')").returncode == 0
    pid = node.pid()
    assert os.getsid(pid) == pid
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert all(os.readlink(f"/proc/{pid}/fd/{fd}") == "/dev/null" for fd in range(3))


def test_it_ends_by_itself_when_nobody_has_used_it_for_its_lifetime(nodes):
    node = nodes(KEEPSTEP_MEMORY_LIFETIME="1s")
    reader, writer = os.pipe()
    code = "s.put('a', b'x'); print('there', flush=True); sys.stdin.read()"
    client = subprocess.Popen(
        [sys.executable, "-c", OPEN + code, "memory://run"],
        env=node.environment, stdin=reader, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(reader)
    assert client.stdout.readline() == "there\n"
    pid = node.pid()
    deadline = time.monotonic() + 3  # as long as a client is connected it stays
    while time.monotonic() < deadline:
        assert node.memory("status", "--json", check=False).returncode == 0
    os.close(writer)
    client.wait()
    client.stdout.close()
    wait_until_dead(pid)
    assert run(node, "print(len(s.list('')))").stdout == "0\n"


def test_a_full_server_refuses_with_the_numbers_and_what_to_do(nodes):
    node = nodes(KEEPSTEP_MEMORY_LIMIT="8MiB")
    code = "import random; [s.put(key, random.Random(key).randbytes(5 << 20)) for key in 'ab']"  # nothing to pack
    ran = run(node, code)
    assert "RESOURCE_EXHAUSTED" not in ran.stdout and ran.returncode == 1
    assert "limit of 8 MiB" in ran.stderr and "KEEPSTEP_MEMORY_LIMIT" in ran.stderr
    assert run(node, "print([found.key for found in s.list('')])").stdout == "['a']\n"
    assert node.status()["used_bytes"] <= 8 << 20


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_refused(nodes):
    node = nodes()
    assert run(node, "s.put('a', b'x')").returncode == 0
    socket_path = next(path for path in os.listdir(f"{node.folder}/keepstep") if "+" not in path)
    code = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); "
        f"s.connect({node.folder!r} + '/keepstep/' + {socket_path!r})"
    )
    denied = subprocess.run(["/usr/bin/python3", "-c", code], capture_output=True, text=True, user=65534)
    assert "PermissionError" in denied.stderr
    # Even if the folders were open, the server asks the kernel who it is.
    os.chmod(node.folder, 0o755)
    os.chmod(f"{node.folder}/keepstep", 0o755)
    os.chmod(f"{node.folder}/keepstep/{socket_path}", 0o777)
    code += '; s.send(b\'{"do":"status"}\'); print(s.recv(1000))'
    denied = subprocess.run(["/usr/bin/python3", "-c", code], capture_output=True, text=True, user=65534)
    assert "pid" not in denied.stdout, denied.stdout
    os.chmod(f"{node.folder}/keepstep", 0o700)
    os.chmod(node.folder, 0o700)
    assert run(node, "print(s.read_all('a', 9))").stdout == "b'x'\n"


def test_a_killed_server_is_named_and_the_next_writer_starts_another(nodes):
    node = nodes()
    code = (
        "s.put('a', b'x'); import os, signal; os.kill(int(sys.argv[2]), signal.SIGKILL)\n"
        "try: s.put('b', b'y')\nexcept c.Error as error: print(error.code, error)\n"
        "s.put('c', b'z'); print([found.key for found in s.list('')])"
    )
    assert run(node, "s.put('a', b'x')").returncode == 0
    ran = run(node, code, node.pid())
    assert ran.returncode == 0, ran.stderr
    *before, last = ran.stdout.splitlines()
    assert last in ("['c']", "['b', 'c']")  # b, if its death was seen before
    assert all("UNAVAILABLE" in line and "memory server" in line for line in before)


def test_stop_ends_it_and_says_when_there_is_none(nodes):
    node = nodes()
    assert run(node, "s.put('a', b'x')").returncode == 0
    pid = node.pid()
    node.memory("stop")
    wait_until_dead(pid)
    stopped = node.memory("stop", check=False)
    assert stopped.returncode == 1 and "no memory server" in stopped.stderr
    assert os.listdir(f"{node.folder}/keepstep") == []


def test_serve_in_the_foreground_and_a_second_one(nodes):
    node = nodes()
    server = node.serve("--limit", "1GiB")
    again = node.memory("serve")
    assert "runs here already" in again.stdout
    assert node.status()["limit_bytes"] == 1 << 30
    server.terminate()
    assert server.wait(60) == 0


def test_all_mistakes_are_listed(nodes):
    node = nodes(KEEPSTEP_MEMORY_LIFETIME="long")
    wrong = node.memory("serve", "--limit", "huge", "--peer", "node-b:1", "--limt", "3", check=False)
    assert wrong.returncode == 2
    for text in ("KEEPSTEP_MEMORY_LIFETIME is 'long'", "--limit is 'huge'", "numeric address", "did you mean --limit"):
        assert text in wrong.stderr
    assert "token" in node.memory("serve", "--listen", "127.0.0.1:0", check=False).stderr
    assert node.memory("fly", check=False).returncode == 2
    with pytest.raises(_checkpoint.Error, match="drains into memory"):
        _checkpoint.open_store("memory://a?drain=memory%3A%2F%2Fb")
    for name in ("memory://", "memory://1", "memory://a/b", "memory://a?drain_keep=2", "memory://" + "a" * 101):
        with pytest.raises(_checkpoint.Error):
            _checkpoint.open_store(name)
