"""A rank's way to the process that writes for it."""

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
    """Where S3 finds whose requests these are; a script may have set it."""
    return {name: value for name, value in values.items() if name.startswith("AWS_") or name == "HOME"}


# What means the same to the process that follows one that ended. The others are about what that one was handed.
_SAID_AGAIN = ("claim", "free", "begin", "file", "told", "prune")
_ENDED = "the process that writes this node's checkpoints ended (background_writer_ended in the journal says how)"


class Link:
    """For one destination; one thread at a time. KeepstepError, of every call: what was refused and why; or that the
    process ended. After that the next call begins anew, with another one.
    """

    def __init__(self, socket_path: str, url: str, job: str) -> None:
        self._socket_path = socket_path
        self._url = url
        self._job = job
        self._connection: socket.socket | None = None
        self._opened = False
        self._environment: dict[str, str] = {}

    def connect(self) -> None:
        """Lets the agent start the process, and waits for nothing."""
        if self._connection is None:
            try:
                self._connection = packets.connect(self._socket_path)
            except KeepstepError as error:
                raise KeepstepError(
                    "the agent of this node starts no process that writes checkpoints "
                    f"(background_writer_ended in the journal says why): {error}"
                ) from None

    def claim(self) -> None:
        """Makes sure that the destination is this job's."""
        self._ask({"op": "claim"})

    def await_free(self, rank: int, version: int) -> list[dict[str, Any]]:
        """Until nothing is under way that another process of `rank` handed over. For rank 0: how saves ended of which
        nobody was told (`told`): their version, attempt, seconds and error ("": it is complete). `version`: what the
        job goes on from; what others saved of later ones is given up, or removed if it is complete."""
        return list(self._ask({"op": "free", "rank": rank, "version": version})["ended"])

    def begin(self, step: int) -> tuple[Begun, int]:
        """And the node where the save is completed: this one."""
        answer = self._ask({"op": "begin", "step": step})
        return Begun(step, answer["token"], answer["attempt"]), answer["node"]

    def hand_over_file(self, begun: Begun, rank: int, node: int, recipe: Recipe, memory: int) -> None:
        """`memory`: the descriptor of what the recipe has ranges of; it stays as it is until `await_file` returns."""
        body = packets.memory_of("keepstep-recipe", recipe.packed())
        try:
            message = {"op": "file", **begun._asdict(), "rank": rank, "node": node, "bytes": recipe.size}
            self._ask(message, (body, memory))
        finally:
            os.close(body)

    def await_file(self) -> None:
        """Until nothing of this rank's memory is read any more. How it ended is rank 0's matter."""
        self._ask({"op": "await_file"})

    def hand_over_rest(self, begun: Begun, manifest: _checkpoint.Manifest, metadata: bytes, generation: int) -> None:
        """By rank 0, when all ranks, of this `generation`, have handed over their files. `manifest`: with
        `sums_to_come`."""
        fds: list[int] = []
        try:
            fds.append(packets.memory_of("keepstep-manifest", manifest.encode()))
            fds.append(packets.memory_of("keepstep-metadata", metadata))
            self._ask({"op": "complete", **begun._asdict(), "generation": generation}, tuple(fds))
        finally:
            packets.close(fds)

    def await_complete(self) -> None:
        """Until the checkpoint is complete. KeepstepError: it never will be."""
        self._ask({"op": "await_complete"})

    def told(self, attempt: int) -> None:
        """The save of this attempt ended and everybody knows: it is not said again."""
        self._ask({"op": "told", "attempt": attempt})

    def prune(self, keep: int | None, max_age_s: float | None) -> None:
        """Removes what is too old, after everybody was told of what is newer."""
        self._ask({"op": "prune", "keep": keep or 0, "max_age_s": max_age_s or 0.0})

    def _ask(self, message: packets.Message, fds: tuple[int, ...] = ()) -> packets.Message:
        again = message.get("op") in _SAID_AGAIN
        if not again and not self._opened:
            raise KeepstepError(_ENDED)
        for may_be_old in (self._opened and again, False):
            try:
                return self._ask_once(message, fds)
            except OSError as error:
                self._forget()
                if not may_be_old:  # else it ended some time ago, and the next one answers
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
