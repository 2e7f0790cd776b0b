"""Packets between a rank and the background writer: JSON, with long contents in memory passed alongside."""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import socket
from typing import Any

from keepstep import _checkpoint
from keepstep._errors import KeepstepError

MAX_PACKET_BYTES = 160 * 1024  # src/base/socket/packet_socket.h
MAX_BODY_BYTES = 1 << 30
MAX_FDS = 4

Message = dict[str, Any]


def connect(path: str) -> socket.socket:
    """Connects to the listener at `path`. KeepstepError: nobody listens, or it is another user."""
    try:
        return socket.socket(fileno=_checkpoint.connect_local(path))
    except _checkpoint.Error as error:
        raise KeepstepError(str(error)) from None


def send(connection: socket.socket, message: Message, fds: tuple[int, ...] = ()) -> None:
    socket.send_fds(connection, [json.dumps(message).encode()], fds)


def receive(connection: socket.socket) -> tuple[Message, list[int]] | None:
    """The next packet and its descriptors, which the caller owns; None at the end. KeepstepError: it is not a JSON
    object."""
    data, fds, flags, _ = socket.recv_fds(connection, MAX_PACKET_BYTES, MAX_FDS, socket.MSG_CMSG_CLOEXEC)
    if not data and not fds:
        return None
    try:
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise ValueError("it is too long, or has too many descriptors")
        message = json.loads(data)
        if not isinstance(message, dict):
            raise ValueError("it is no JSON object")
    except (ValueError, RecursionError) as error:
        close(fds)
        raise KeepstepError(f"a packet about a checkpoint cannot be read: {error}") from None
    return message, list(fds)


def close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def memory(label: str, bytes: int) -> int:
    """A descriptor of `bytes` of memory, allocated now and of fixed size. OSError: there is not enough memory."""
    fd = os.memfd_create(label, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(fd, 0, bytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(fd)
        raise
    return fd


def memory_of(label: str, body: bytes) -> int:
    """The same, filled with `body` (at least one byte)."""
    fd = memory(label, len(body))
    with mmap.mmap(fd, len(body)) as held:
        held[:] = body
    return fd


def size_of(fd: int) -> int:
    """The size of shared memory. KeepstepError: it could shrink while it is read, which would kill this process."""
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        seals = 0
    if not seals & fcntl.F_SEAL_SHRINK:
        raise KeepstepError("what came with a packet about a checkpoint is no memory that is sealed against shrinking")
    return os.fstat(fd).st_size


def body_of(fd: int, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    """The contents. KeepstepError: empty, or more than `max_bytes`."""
    size = size_of(fd)
    if not 0 < size <= max_bytes:
        raise KeepstepError(f"{size} bytes came with a packet about a checkpoint; 1 to {max_bytes} can be")
    with mmap.mmap(fd, size, prot=mmap.PROT_READ) as held:
        return held[:]
