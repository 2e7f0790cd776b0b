"""Serves the requests of ranks: a thread for each rank and destination, and one per file and save in progress."""

from __future__ import annotations

import dataclasses
import itertools
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from keepstep import _checkpoint
from keepstep._errors import KeepstepError
from keepstep.checkpoint import destinations, owners, saving
from keepstep.checkpoint.background import packets, writing
from keepstep.checkpoint.background.news import NOT_HEARD_S, Name, News, State

MAX_UNTOLD = 16  # ended saves of one destination that no rank 0 has been told of
LOOK_S = 1.0


@dataclasses.dataclass
class _File:
    """A file of one rank that is being written, or is written while its save has not ended."""

    rank: int
    client: int  # the client that handed it over
    state: State


@dataclasses.dataclass
class PendingCommit:
    """The commit that makes a save's files a checkpoint: in progress until `error` is known ("": complete)."""

    version: int
    attempt: int
    client: int
    generation: int  # of the ranks
    seconds: float = 0.0
    error: str | None = None
    given_up: bool = False  # the job continues from an earlier version
    unwanted: bool = False  # the same, but it had ended before that was known: it must be removed


class Service:
    """`send(node, message)`: sends to another node's background writer. `saved(version, generation)`: tells the agent
    that a save is complete."""

    def __init__(self, node: int, send: Callable[[int, str], None], saved: Callable[[int, int], None]) -> None:
        self.node = node
        self._saved = saved
        self.news = News(send, self._wake)
        self.changed = threading.Condition()
        self.files: dict[Name, _File] = {}
        self.rests: dict[str, dict[int, PendingCommit]] = {}  # by destination and attempt
        self.stores: set[_checkpoint.Store] = set()  # with writes in progress
        self.claimed_with: dict[str, dict[str, str]] = {}  # environments, by destination
        self._clients = itertools.count(1)

    def serve(self, connection: socket.socket) -> None:
        """Serves one rank's requests for one destination until it is gone. What it handed over continues."""
        client = _Client(self, next(self._clients))
        with connection:
            while True:
                try:
                    received = packets.receive(connection)
                except KeepstepError as error:
                    received = {"op": str(error)}, []
                except OSError:
                    return
                if received is None:
                    return
                message, fds = received
                try:
                    answer = client.answer(message, fds)
                except (KeepstepError, _checkpoint.Error, OSError) as error:
                    answer = {"error": str(error) or type(error).__name__}
                except Exception as error:
                    answer = {"error": f"a request that cannot be read: {type(error).__name__}: {error}"}
                finally:
                    packets.close(fds)
                try:
                    packets.send(connection, answer)
                except OSError:
                    return

    def end(self, limit_s: float) -> None:
        """Waits this long for saves in progress, then cancels them and releases all destinations."""
        with self.changed:
            self.changed.wait_for(self._idle, limit_s)
            for store in self.stores:
                store.interrupt()
            self.changed.wait_for(self._idle, 2.0)  # lets them remove what they began
        owners.let_go()

    def _idle(self) -> bool:
        return not self.stores

    def _wake(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def under_way(self, url: str) -> list[PendingCommit]:
        return [rest for rest in self.rests.get(url, {}).values() if rest.error is None]

    # ---- files ----

    def begin_file(
        self, url: str, key: str, file: _File, store: _checkpoint.Store, node: int, expected: int, recipe: bytes,
        memory: int,
    ) -> None:  # fmt: skip
        """The caller still owns `memory`."""
        with self.changed:
            if (url, key) in self.files:
                raise KeepstepError(f"'{key}' was handed over before")
            needed = {name for name, other in self.files.items() if not other.state.ended or self.under_way(name[0])}
            for name in [name for name in self.files if name[0] == url and name not in needed]:
                if self.files[name].rank == file.rank:
                    del self.files[name]  # its save was given up
            held = os.dup(memory)
            try:
                _in_thread(self._write, url, key, file, store, node, expected, recipe, held)
            except BaseException:
                os.close(held)
                raise
            self.files[url, key] = file
            self.stores.add(store)

    def _write(
        self, url: str, key: str, file: _File, store: _checkpoint.Store, node: int, expected: int, recipe: bytes,
        memory: int,
    ) -> None:  # fmt: skip
        if node != self.node:
            self.news.tell(node, (url, key), State())
        sums, error = None, ""
        try:
            sums = writing.write(store, key, expected, recipe, memory)
        except Exception as raised:
            error = f"rank {file.rank}: {raised}"
        finally:
            os.close(memory)
        with self.changed:
            file.state = State(sums, error)
            self.stores.discard(store)
            self.changed.notify_all()
        if node != self.node:
            self.news.tell(node, (url, key), file.state)

    # ---- saves ----

    def begin_rest(
        self,
        url: str,
        rest: PendingCommit,
        owner: _checkpoint.Owner,
        store: _checkpoint.Store,
        manifest: bytes,
        metadata: bytes,
    ) -> None:
        """KeepstepError, `_checkpoint.Error`: what was handed over is invalid."""
        draft = _checkpoint.parse_manifest(manifest)
        if draft.step != rest.version or draft.token != owner.token:
            raise KeepstepError(
                f"a manifest of step {draft.step} with token {draft.token} was handed over for step {rest.version} "
                f"with token {owner.token}"
            )
        if _checkpoint.sums_of(metadata).whole != draft.metadata.whole:
            raise KeepstepError("'.metadata' is not what its manifest says")
        with self.changed:
            of_destination = self.rests.setdefault(url, {})
            if rest.attempt in of_destination:
                raise KeepstepError(f"attempt {rest.attempt} was handed over before")
            _in_thread(self._complete, url, rest, owner, store, draft, metadata)
            of_destination[rest.attempt] = rest
            self.stores.add(store)

    def _complete(
        self, url: str, rest: PendingCommit, owner: _checkpoint.Owner, store: _checkpoint.Store,
        draft: _checkpoint.Manifest, metadata: bytes,
    ) -> None:  # fmt: skip
        began = time.monotonic()
        names = [(url, f"{_checkpoint.folder_of(rest.version)}/{file}") for file in draft.layout.files]
        error = ""
        try:
            sums = self._await_files(rest, names, draft.sums)
            manifest = _checkpoint.Manifest(
                step=draft.step, world=draft.world, created_s=draft.created_s, job=draft.job, token=draft.token,
                layout=draft.layout, sums=sums, metadata=draft.metadata,
            )  # fmt: skip
            _checkpoint.Catalog(store).commit(owner, manifest, metadata, True)
            self._saved(rest.version, rest.generation)  # its ranks may all be gone, and their successors about to begin
        except Exception as raised:
            error = str(raised) or type(raised).__name__
        for name in names:
            self.news.forget(name)
        with self.changed:
            rest.seconds = time.monotonic() - began
            rest.error = error
            for name in names:
                if name in self.files and self.files[name].state.ended:
                    del self.files[name]
            ended = [attempt for attempt, other in self.rests[url].items() if other.error is not None]
            for attempt in ended[:-MAX_UNTOLD]:
                del self.rests[url][attempt]
            self.stores.discard(store)
            self.changed.notify_all()

    def _await_files(
        self, rest: PendingCommit, names: list[Name], expected: list[_checkpoint.FileSums]
    ) -> list[_checkpoint.FileSums]:
        began = time.monotonic()
        with self.changed:
            while True:
                if rest.given_up:
                    raise KeepstepError("the job goes on from an earlier step")
                states = [self._state_of(name) for name in names]
                for (_, key), state in zip(names, states, strict=True):
                    if state is not None and state.error:
                        raise KeepstepError(state.error)
                    last = began if state is None else max(began, state.heard)
                    patience_s = NOT_HEARD_S if state is None else state.patience_s
                    if (state is None or not state.ended) and time.monotonic() - last > patience_s:
                        whose = "another node's"
                        if state is not None and patience_s < NOT_HEARD_S:
                            whose = f"node {state.node}'s, which has no ranks any more"
                        raise KeepstepError(f"'{key}' is {whose}, and nothing was heard of it for {patience_s:.0f} s")
                sums = [state.sums for state in states if state is not None and state.sums is not None]
                if len(sums) == len(names):
                    break
                self.changed.wait(LOOK_S)
        for (_, key), mine, theirs in zip(names, sums, expected, strict=True):
            if mine.bytes != theirs.bytes:
                raise KeepstepError(f"'{key}' has {mine.bytes} bytes; its manifest says {theirs.bytes}")
        return sums

    def _state_of(self, name: Name) -> State | None:
        file = self.files.get(name)
        if file is None:
            return self.news.of(name)
        # A local file is never considered silent: the store has its own limits.
        return dataclasses.replace(file.state, heard=time.monotonic())


class _Client:
    """One rank at one destination."""

    def __init__(self, service: Service, number: int) -> None:
        self._service = service
        self._number = number
        self._url = ""
        self._job = ""
        self._environment: dict[str, str] = {}
        self._owner: _checkpoint.Owner | None = None
        self._file: _File | None = None  # the most recent one
        self._rest: PendingCommit | None = None

    def answer(self, message: packets.Message, fds: list[int]) -> packets.Message:
        op = message["op"]
        asked = _OPS.get(op) if type(op) is str else None
        if asked is None:
            raise KeepstepError(f"an unknown request: {str(op)[:200]!r}")
        if not self._url and op != "open":
            raise KeepstepError(f"'{op}' before 'open'")
        return asked(self, message, fds) or {"ok": True}

    def open(self, message: packets.Message, fds: list[int]) -> None:
        environment = {_text(name): _text(value) for name, value in message["environment"].items()}
        destinations.open_store(_text(message["url"]), environment)  # reports mistakes in the URL now
        self._url, self._job, self._environment = _text(message["url"]), _text(message["job"]), environment

    def claim(self, message: packets.Message, fds: list[int]) -> None:
        self._let_go_of_other_rights()
        owners.owner_of(self._url, self._store(), self._job)

    def free(self, message: packets.Message, fds: list[int]) -> packets.Message:
        rank, version = _whole(message, "rank"), _whole(message, "version")
        service = self._service

        def others() -> bool:
            of_rank = any(
                name[0] == self._url and file.rank == rank and file.client != self._number and not file.state.ended
                for name, file in service.files.items()
            )
            return of_rank or (rank == 0 and any(r.client != self._number for r in service.under_way(self._url)))

        with service.changed:
            # A snapshot: the caller may die during the wait, and saves that arrive meanwhile belong to its successor.
            of_destination = service.rests.get(self._url, {}) if rank == 0 else {}
            before = [rest for rest in of_destination.values() if rest.client != self._number]
            for rest in before:
                rest.given_up = rest.error is None and rest.version > version
            service.changed.notify_all()
            service.changed.wait_for(lambda: not others())
            for rest in before:
                rest.unwanted = rest.unwanted or rest.version > version
            ended = [rest for rest in of_destination.values() if rest.error is not None and not rest.unwanted]
        self._remove_unwanted()
        return {
            "ended": [
                {"version": rest.version, "attempt": rest.attempt, "seconds": rest.seconds, "error": rest.error}
                for rest in ended
            ]
        }

    def begin(self, message: packets.Message, fds: list[int]) -> packets.Message:
        service = self._service
        with service.changed:  # two saves that end at the same time would remove each other's files
            service.changed.wait_for(lambda: not service.under_way(self._url))
        service.news.forget_destination(self._url)
        self._let_go_of_other_rights()
        self._remove_unwanted()
        self._owner, begun = saving.begin(self._url, self._store(), self._job, _whole(message, "step"), replace=True)
        return {"token": begun.token, "attempt": begun.attempt, "node": service.node}

    def file(self, message: packets.Message, fds: list[int]) -> None:
        recipe, memory = fds
        step, rank = _whole(message, "step"), _whole(message, "rank")
        name = _checkpoint.data_file_name(rank, 0, _whole(message, "token"), _whole(message, "attempt"))
        file = _File(rank, self._number, State())
        self._service.begin_file(
            self._url, f"{_checkpoint.folder_of(step)}/{name}", file, self._store(), node=_whole(message, "node"),
            expected=_whole(message, "bytes"), recipe=packets.body_of(recipe), memory=memory,
        )  # fmt: skip
        self._file = file

    def await_file(self, message: packets.Message, fds: list[int]) -> None:
        with self._service.changed:
            self._service.changed.wait_for(lambda: self._file is None or self._file.state.ended)

    def complete(self, message: packets.Message, fds: list[int]) -> None:
        manifest, metadata = fds
        if self._owner is None or self._owner.token != _whole(message, "token"):
            raise KeepstepError("a save that did not begin here, or that another one followed")
        step, attempt, generation = (_whole(message, name) for name in ("step", "attempt", "generation"))
        rest = PendingCommit(step, attempt, self._number, generation)
        self._service.begin_rest(
            self._url, rest, self._owner, self._store(), packets.body_of(manifest), packets.body_of(metadata)
        )
        self._rest = rest

    def await_complete(self, message: packets.Message, fds: list[int]) -> packets.Message:
        rest = self._rest
        if rest is None:
            raise KeepstepError("nothing was handed over")
        with self._service.changed:
            self._service.changed.wait_for(lambda: rest.error is not None)
        return {"error": rest.error}

    def told(self, message: packets.Message, fds: list[int]) -> None:
        attempt = _whole(message, "attempt")
        with self._service.changed:
            rest = self._service.rests.get(self._url, {}).get(attempt)
            if rest is not None and rest.error is not None:
                del self._service.rests[self._url][attempt]

    def prune(self, message: packets.Message, fds: list[int]) -> None:
        keep, max_age_s = _whole(message, "keep"), float(message["max_age_s"])
        store = self._store()
        owner = owners.owner_of(self._url, store, self._job)
        _checkpoint.Catalog(store).prune(owner, keep, max_age_s)

    def let_go(self, message: packets.Message, fds: list[int]) -> None:
        """Unless another rank's save is under way there."""
        service = self._service
        with service.changed:
            if service.under_way(self._url):
                return
            if not service.rests.get(self._url):
                service.rests.pop(self._url, None)
            service.claimed_with.pop(self._url, None)
        owners.let_go(self._url)

    def _remove_unwanted(self) -> None:
        """Removes saves of an abandoned history, which retention would take for the newest.

        If one cannot be removed, this is reported, and the next save tries again.
        """
        with self._service.changed:
            of_destination = self._service.rests.get(self._url, {})
            unwanted = [rest for rest in of_destination.values() if rest.unwanted and rest.error is not None]
        for rest in unwanted:
            try:
                if not rest.error:
                    store = self._store()
                    owners.owner_of(self._url, store, self._job)
                    _checkpoint.Catalog(store).remove(rest.version)
            except (KeepstepError, _checkpoint.Error) as error:
                what = f"step {rest.version}, which the job gave up, could not be removed from {self._url}"
                print(f"keepstep: {what}: {error}", file=sys.stderr)
                continue
            with self._service.changed:
                of_destination.pop(rest.attempt, None)

    def _store(self) -> _checkpoint.Store:
        return destinations.open_store(self._url, self._environment)

    def _let_go_of_other_rights(self) -> None:
        """Releases the destination if rank 0 has newer credentials than those it was claimed with."""
        service = self._service
        with service.changed:
            before = service.claimed_with.get(self._url)
            if before is not None and before != self._environment and service.under_way(self._url):
                return
            service.claimed_with[self._url] = self._environment
        if before is not None and before != self._environment:
            owners.let_go(self._url)


_OPS: dict[str, Callable[[_Client, packets.Message, list[int]], packets.Message | None]] = {
    "open": _Client.open, "claim": _Client.claim, "free": _Client.free, "begin": _Client.begin, "file": _Client.file,
    "await_file": _Client.await_file, "complete": _Client.complete, "await_complete": _Client.await_complete,
    "told": _Client.told, "prune": _Client.prune, "let_go": _Client.let_go,
}  # fmt: skip


def _in_thread(run: Callable[..., None], *arguments: Any) -> None:
    try:
        threading.Thread(target=run, args=arguments, name="keepstep-save", daemon=True).start()
    except RuntimeError as error:
        raise KeepstepError(f"no thread can be started: {error}") from None


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"{value!r:.100} where a text is due")
    return value


def _whole(message: packets.Message, name: str) -> int:
    value = message[name]
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"{name}={value!r:.100}; a whole number is due")
    return value
