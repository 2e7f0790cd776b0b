"""A rank's connection to its node's background writer."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

from keepstep import _checkpoint
from keepstep._errors import KeepstepError
from keepstep.checkpoint.background import packets
from keepstep.checkpoint.background.recipe import Recipe
from keepstep.checkpoint.saving import Begun


def environment_for_stores(values: Mapping[str, str]) -> dict[str, str]:
    """The variables in which S3 finds its credentials; a script may have set them."""
    return {name: value for name, value in values.items() if name.startswith("AWS_") or name == "HOME"}


# Requests that mean the same to a new process. The others refer to what the previous process was given.
_SAID_AGAIN = ("claim", "free", "begin", "file", "told", "prune")
_ENDED = "the process that writes this node's checkpoints ended (background_writer_ended in the journal says how)"


class Link:
    """For one destination; one thread at a time. Every call may raise KeepstepError: it was refused (the message says
    why), or the process ended. In the latter case the next call starts another process.
    """

    def __init__(self, socket_path: str, url: str, job: str) -> None:
        self._socket_path = socket_path
        self._url = url
        self._job = job
        self._connection: socket.socket | None = None
        self._opened = False
        self._environment: dict[str, str] = {}

    def connect(self) -> None:
        """Has the agent start the process; does not wait for it."""
        if self._connection is None:
            try:
                self._connection = packets.connect(self._socket_path)
            except KeepstepError as error:
                raise KeepstepError(
                    "the agent of this node starts no process that writes checkpoints "
                    f"(background_writer_ended in the journal says why): {error}"
                ) from None

    def claim(self) -> None:
        """Makes sure that the destination belongs to this job."""
        self._ask({"op": "claim"})

    def await_free(self, rank: int, version: int) -> list[dict[str, Any]]:
        """Waits until nothing that another process of `rank` handed over is in progress. For rank 0 returns the saves
        that ended and were not reported yet (see `told`): version, attempt, seconds and error ("": complete).
        `version`: the one that the job continues from; saves of later versions by other processes are given up, or
        removed if they are complete."""
        return list(self._ask({"op": "free", "rank": rank, "version": version})["ended"])

    def begin(self, step: int) -> tuple[Begun, int]:
        """Begins a save. Also returns the node that completes it: this one."""
        answer = self._ask({"op": "begin", "step": step})
        return Begun(step, answer["token"], answer["attempt"]), answer["node"]

    def hand_over_file(self, begun: Begun, rank: int, node: int, recipe: Recipe, memory: int) -> None:
        """`memory`: the descriptor of the recipe's memory, which must not change until `await_file` returns."""
        body = packets.memory_of("keepstep-recipe", recipe.packed())
        try:
            message = {"op": "file", **begun._asdict(), "rank": rank, "node": node, "bytes": recipe.size}
            self._ask(message, (body, memory))
        finally:
            os.close(body)

    def await_file(self) -> None:
        """Waits until this rank's memory is no longer read. Only rank 0 learns how the file ended."""
        self._ask({"op": "await_file"})

    def hand_over_rest(self, begun: Begun, manifest: _checkpoint.Manifest, metadata: bytes, generation: int) -> None:
        """Called by rank 0 once all ranks, of this `generation`, have handed over their files. `manifest`: with
        `sums_to_come`."""
        fds: list[int] = []
        try:
            fds.append(packets.memory_of("keepstep-manifest", manifest.encode()))
            fds.append(packets.memory_of("keepstep-metadata", metadata))
            self._ask({"op": "complete", **begun._asdict(), "generation": generation}, tuple(fds))
        finally:
            packets.close(fds)

    def await_complete(self) -> None:
        """Waits until the checkpoint is complete. KeepstepError: it never will be."""
        self._ask({"op": "await_complete"})

    def told(self, attempt: int) -> None:
        """Everyone knows how the save of this attempt ended: it is not reported again."""
        self._ask({"op": "told", "attempt": attempt})

    def prune(self, keep: int | None, max_age_s: float | None) -> None:
        """Removes checkpoints that are too old, once everyone has been told of the newer ones."""
        self._ask({"op": "prune", "keep": keep or 0, "max_age_s": max_age_s or 0.0})

    def close(self) -> None:
        """Releases the destination, for one that gets no further save, and closes the connection."""
        if self._opened:
            self._ask({"op": "let_go"})
        self._forget()

    def _ask(self, message: packets.Message, fds: tuple[int, ...] = ()) -> packets.Message:
        again = message.get("op") in _SAID_AGAIN
        if not again and not self._opened:
            raise KeepstepError(_ENDED)
        for may_be_old in (self._opened and again, False):
            try:
                return self._ask_once(message, fds)
            except OSError as error:
                self._forget()
                if not may_be_old:  # otherwise the process ended some time ago, and the next one answers
                    raise KeepstepError(f"{_ENDED}: {error}") from None
        raise AssertionError("unreachable")

    def _ask_once(self, message: packets.Message, fds: tuple[int, ...]) -> packets.Message:
        self.connect()
        environment = environment_for_stores(os.environ)
        if not self._opened or environment != self._environment:  # a script may renew its credentials
            self._answer_to({"op": "open", "url": self._url, "job": self._job, "environment": environment})
            self._opened = True
            self._environment = environment
        return self._answer_to(message, fds)

    def _forget(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._opened = False

    def _answer_to(self, message: packets.Message, fds: tuple[int, ...] = ()) -> packets.Message:
        assert self._connection is not None
        packets.send(self._connection, message, fds)
        received = packets.receive(self._connection)
        if received is None:
            raise ConnectionResetError("no answer")
        answer, more = received
        packets.close(more)
        if answer.get("error"):
            raise KeepstepError(str(answer["error"]))
        return answer
