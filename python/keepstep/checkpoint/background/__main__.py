"""``python -m keepstep.checkpoint.background LISTENER AGENT NODE``: two descriptors from the agent, and its node's
number.

Ends with the agent: at once when the agent is gone, or, when the agent asks it to end, after it released its
destinations.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time

from keepstep import _checkpoint
from keepstep._errors import KeepstepError
from keepstep.checkpoint.background import packets
from keepstep.checkpoint.background.news import MAX_MESSAGE_BYTES
from keepstep.checkpoint.background.service import Service

MAX_CONNECTIONS = 4096
ACCEPT_PAUSE_S = 0.5
LAST_SAVES_S = 5.0  # for saves already handed over, at the end of a job that failed


class _Agent:
    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._lock = threading.Lock()

    def send(self, node: int, text: str) -> None:
        body = text.encode()
        fd = packets.memory_of("keepstep-news", body)
        try:
            self._say({"to": node, "bytes": len(body)}, (fd,))
        finally:
            os.close(fd)

    def saved(self, version: int, generation: int) -> None:
        self._say({"saved": version, "generation": generation})

    def _say(self, message: packets.Message, fds: tuple[int, ...] = ()) -> None:
        with self._lock, contextlib.suppress(OSError):  # the agent is gone, and so is this process
            packets.send(self.connection, message, fds)


def _end(service: Service) -> None:
    service.end(LAST_SAVES_S)
    os._exit(0)


def _on_agent(agent: _Agent, service: Service) -> None:
    received = packets.receive(agent.connection)
    if received is None:
        os._exit(1)  # leaves the stores like a SIGKILL
    message, fds = received
    try:
        if "end" in message:
            threading.Thread(target=_end, args=(service,), name="keepstep-end", daemon=True).start()
        elif "gone" in message:
            service.news.lose(int(message["gone"]))
        elif len(fds) == 1:
            service.news.take(int(message["from"]), packets.body_of(fds[0], MAX_MESSAGE_BYTES).decode())
    except (KeepstepError, ValueError, KeyError, TypeError) as error:
        print(f"keepstep: {error}", file=sys.stderr)
    finally:
        packets.close(fds)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # Slurm signals every process of a job; the agent knows what to do
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the agent started us with them blocked: drops what is pending
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    listener = socket.socket(fileno=int(sys.argv[1]))
    agent = _Agent(socket.socket(fileno=int(sys.argv[2])))
    for each in (listener, agent.connection):
        os.set_inheritable(each.fileno(), False)
    service = Service(int(sys.argv[3]), agent.send, agent.saved)
    ready = select.poll()
    ready.register(listener, select.POLLIN)
    ready.register(agent.connection, select.POLLIN)
    while True:
        for fd, _ in ready.poll():
            if fd == agent.connection.fileno():
                _on_agent(agent, service)
                continue
            try:
                connection, _ = listener.accept()
            except OSError as error:  # no free descriptor: the rank asks again later
                print(f"keepstep: the background writer cannot accept a connection: {error}", file=sys.stderr)
                time.sleep(ACCEPT_PAUSE_S)
                continue
            if not _checkpoint.is_trusted(connection.fileno()) or threading.active_count() > MAX_CONNECTIONS:
                connection.close()
                continue
            threading.Thread(target=service.serve, args=(connection,), name="keepstep-rank", daemon=True).start()


if __name__ == "__main__":
    main()
