"""`subscribe`: the newest published weights of a running job, in a process that is none of its ranks."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import mmap
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keepstep._errors import JobOver, KeepstepError
from keepstep._running_job import Closes, NotThere, RunningJob
from keepstep.checkpoint.background import packets
from keepstep.checkpoint.safetensors import read_layout
from keepstep.publications import MAX_NAME_BYTES

if TYPE_CHECKING:
    from keepstep.torch.tensors.mapped import Tensors

ASK_S = 15.0
_PIECE_S = 120.0
_ABSENT_S = 20.0  # after which a job that does not answer has ended
_LOOK_S = 0.1  # between two looks for a job, or, over the network, for a newer version
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class Version:
    """Published tensors after one committed step. They never change; memory is freed with the last tensor.

    Attributes:
        step: committed steps when it was published: 0, before the first one.
        bytes: size of the file.
        metadata: what the file says beside its tensors; a tied tensor's other names are in it, as in files of
            ``safetensors.torch.save_model``.
    """

    def __init__(self, name: str, step: int, fd: int) -> None:
        """Takes over `fd`."""
        self.name = name
        self.step = step
        try:
            self.bytes = os.fstat(fd).st_size
            # Private: a tensor may be written to, and then has its own pages.
            self._file = mmap.mmap(fd, self.bytes, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
            self._fd = os.dup(fd)
        finally:
            os.close(fd)
        self._layout, self.metadata = read_layout(memoryview(self._file), f"version {step} of '{name}'")

    def __del__(self) -> None:
        if (fd := getattr(self, "_fd", -1)) >= 0:
            os.close(fd)

    def __repr__(self) -> str:
        return f"Version('{self.name}', step={self.step}, {len(self._layout)} tensors, {self.bytes} bytes)"

    @property
    def tensors(self) -> Tensors:
        """By name, on the CPU, mapped and not copied. Tied tensors are there under each of their names."""
        from keepstep.torch.tensors import mapped

        found = mapped.tensors(self._file, self._layout)
        found |= {name: found[other] for name, other in self.metadata.items() if other in found and name not in found}
        return found

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes it as a file ``*.safetensors``; one that is there is replaced as a whole."""
        target = Path(path)
        partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
        try:
            with partial.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, self.bytes)
                done = 0
                while done < self.bytes:
                    done += os.sendfile(file.fileno(), self._fd, done, self.bytes - done)
                os.fsync(file.fileno())
            partial.rename(target)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


class Subscription(Closes):
    """Made by `subscribe`; for one thread of the process that made it. Used in a ``with``, or closed by `close`."""

    def __init__(self, name: str, job: RunningJob, where: str | None) -> None:
        self.name = name
        self._job = job
        self._service = ""  # that `_serial` is of
        self._serial = 0  # of the version returned last
        self._asked = False  # the agent owes an answer, to a call whose time was up
        self._closed = False
        # None: the job runs on another machine.
        self._socket = None if where is None else _connect(where, job.called)

    def close(self) -> None:
        """Ends the subscription; versions that it returned stay."""
        self._closed = True
        self._job.close()
        if self._socket is not None:
            self._socket.close()

    def __iter__(self) -> Iterator[Version]:
        """Newer and newer versions, until the job ends. Those that come while the caller is busy are skipped."""
        while True:
            try:
                version = self.next()
            except JobOver:
                return
            assert version is not None
            yield version

    def next(self, timeout_s: float | None = None) -> Version | None:
        """The newest version, once there is one that was not returned yet.

        None: there was none within `timeout_s`, which does not count the time of a transfer over the network.

        Raises:
            JobOver: the job has ended.
        """
        if self._closed:
            raise KeepstepError(f"the subscription to '{self.name}' is closed")
        end = None if timeout_s is None else time.monotonic() + timeout_s
        found = self._wait(end) if self._socket is not None else self._pull(end)
        if found is None:
            return None
        step, self._serial, fd = found
        return Version(self.name, step, fd)

    # ---- on this machine ----

    def _wait(self, end: float | None) -> tuple[int, int, int] | None:
        late = None
        if self._asked:  # what came meanwhile may be old by now
            late = self._answer(time.monotonic())
            if self._asked:
                return self._answer(end)
        if late is not None:
            self._request(late[1], wait=False)
            newer = self._answer(None)
            if newer is not None:
                os.close(late[2])
            return newer or late
        self._request(self._serial, wait=True)
        return self._answer(end)

    def _request(self, after: int, wait: bool) -> None:
        assert self._socket is not None
        fields = {"name": self.name, "after": after, "wait": wait}  # src/messages/publication_messages.h
        with contextlib.suppress(BrokenPipeError):  # why is in its last answer
            self._socket.send(b"next_publication " + json.dumps(fields).encode())
        self._asked = True

    def _answer(self, end: float | None) -> tuple[int, int, int] | None:
        """Version, serial number and descriptor; None if it did not come in time, or there is nothing newer."""
        assert self._socket is not None
        self._socket.settimeout(None if end is None else max(end - time.monotonic(), 1e-6))
        try:
            packet, fds, _, _ = socket.recv_fds(self._socket, packets.MAX_PACKET_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
        except TimeoutError:
            return None
        except OSError as error:
            raise JobOver(f"{self._job.called} has ended ({error})") from None
        if not packet:
            raise JobOver(f"{self._job.called} has ended")
        self._asked = False
        kind, _, text = packet.partition(b" ")
        said = json.loads(text)
        if kind == b"nothing_newer":
            return None
        if kind != b"published" or len(fds) != 1:
            packets.close(fds)
            raise KeepstepError(f"{self._job.called}: {said.get('because', 'the launcher sent an invalid answer')}")
        if fcntl.fcntl(fds[0], fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            packets.close(fds)
            raise KeepstepError(f"{self._job.called} sent memory that is not sealed")
        return said["version"], said["serial"], fds[0]

    # ---- over the network ----

    def _ask(self, op: str, limit_s: float, **fields: Any) -> dict[str, Any]:
        """Tries for a while: a launcher may be stopped, or too busy to answer."""
        end = time.monotonic() + _ABSENT_S
        while True:
            try:
                return self._job.ask(op, limit_s, **fields)
            except NotThere as error:
                if time.monotonic() >= end:
                    raise JobOver(f"{error}, for {_ABSENT_S:.0f} s") from None
            time.sleep(_LOOK_S)

    def _pull(self, end: float | None) -> tuple[int, int, int] | None:
        while True:
            found = self._ask("publications", ASK_S)
            if found["service"] != self._service:  # the job was started again
                self._service, self._serial = found["service"], 0
            if any(each["name"] == self.name and each["serial"] > self._serial for each in found["publications"]):
                copied = self._copy()
                if copied is not None:
                    return copied
                continue  # it was replaced meanwhile
            if end is not None and time.monotonic() >= end:
                return None
            time.sleep(_LOOK_S if end is None else min(_LOOK_S, max(end - time.monotonic(), 0)))

    def _copy(self) -> tuple[int, int, int] | None:
        """The newest version, piece by piece; None: it is gone before its end was read."""
        first = piece = self._ask("publication", _PIECE_S, name=self.name, serial=0, offset=0)
        if first["gone"]:
            return None
        size, serial, done = first["bytes"], first["serial"], 0
        fd = packets.memory("keepstep-publication", size)
        try:
            while True:
                data = base64.b64decode(piece["data"])
                if not data or piece["serial"] != serial:
                    raise KeepstepError(f"{self._job.called} sent an invalid piece of '{self.name}'")
                os.pwrite(fd, data, done)
                done += len(data)
                if done >= size:
                    return first["version"], serial, fd
                piece = self._ask("publication", _PIECE_S, name=self.name, serial=serial, offset=done)
                if piece["gone"]:
                    os.close(fd)
                    return None
        except BaseException:
            os.close(fd)
            raise


def _connect(path: str, called: str) -> socket.socket:
    try:
        return packets.connect(path)
    except KeepstepError as error:
        raise JobOver(f"{called} has ended ({error})") from None


def job_of(job: str, token_file: str | os.PathLike[str] | None, rdzv_id: str | None) -> RunningJob:
    key = [] if token_file is None else ["--token-file", os.fspath(token_file)]
    key += [] if rdzv_id is None else ["--rdzv-id", rdzv_id]
    return RunningJob(job, key)


def subscribe(
    name: str,
    job: str = "",
    *,
    token_file: str | os.PathLike[str] | None = None,
    rdzv_id: str | None = None,
    timeout_s: float = 60.0,
) -> Subscription:
    """Follows what ``run.publish(name, ...)`` publishes in a running job, from a process that is none of its ranks.

    ``for version in keepstep.subscribe("weights"): model.load_state_dict(version.tensors)``

    On the job's machine the tensors are mapped from the launcher's memory and not copied. With `job` as HOST:PORT, the
    job's ``--rdzv-endpoint``, they are pulled from node 0, and the job token is needed.

    Args:
        name: of the publication.
        job: as for ``keepstep stacks``: the job's name, its journal's folder, or its launcher's pid; empty: the only
            job on this machine; or HOST:PORT.
        token_file: for HOST:PORT: the job's ``--token-file``. None: ``KEEPSTEP_TOKEN`` in the environment.
        rdzv_id: for HOST:PORT: the job's ``--rdzv-id``, if it has one.
        timeout_s: how long to wait for the job to be there. What it publishes is waited for by `Subscription.next`.

    Raises:
        KeepstepError: there is no such job; several are possible; the token is wrong.
    """
    if not isinstance(name, str) or not 0 < len(name.encode(errors="replace")) <= MAX_NAME_BYTES:
        raise KeepstepError(f"keepstep.subscribe({name!r}): a name of 1 to {MAX_NAME_BYTES} bytes is needed")
    running = job_of(job, token_file, rdzv_id)
    end = time.monotonic() + timeout_s
    try:
        while True:
            try:
                found = running.ask("publications", ASK_S)
                if ":" in job and not Path(job).is_dir():
                    return Subscription(name, running, None)
                running.close()
                return Subscription(name, running, found["socket"])
            except NotThere:
                if time.monotonic() >= end:
                    raise
            time.sleep(_LOOK_S)
    except BaseException:
        running.close()
        raise
