"""What the background writers of several nodes tell each other: how far the files of a save are.

A save is completed on rank 0's node. The other nodes report on their files: every few seconds that they are still
being written, so a lost node is noticed; then how that ended, until it is acknowledged. The agents forward the
messages, which may get lost.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from keepstep import _checkpoint
from keepstep._errors import KeepstepError
from keepstep.checkpoint.background import sums as sums_json

SAY_AGAIN_S = 5.0
NOT_HEARD_S = 30.0  # silence about a file after which its node is taken for lost
LAST_NEWS_S = 3.0  # the same for a node that no longer has ranks
MAX_MESSAGE_BYTES = 16 << 20  # src/agent/workers/background_writer.cc
MAX_KNOWN = 100_000  # files of other nodes

Name = tuple[str, str]  # the destination's URL, the file's key


@dataclass
class State:
    """The state of one file. With neither `sums` nor `error` it is being written."""

    sums: _checkpoint.FileSums | None = None
    error: str = ""
    heard: float = 0.0  # time of the last message, on the monotonic clock
    node: int = -1  # the node that reported it
    patience_s: float = NOT_HEARD_S

    @property
    def ended(self) -> bool:
        return self.sums is not None or bool(self.error)


@dataclass
class _Told:
    """A file of this node whose save is completed on another node."""

    node: int
    state: State
    until: float | None = None  # set once it ended: the report is repeated no longer than this


class News:
    """`send(node, message)` sends; `changed()` is called when a message arrived."""

    def __init__(self, send: Callable[[int, str], None], changed: Callable[[], None]) -> None:
        self._send = send
        self._changed = changed
        self._lock = threading.Lock()
        self._heard: dict[Name, State] = {}
        self._telling: dict[Name, _Told] = {}
        self._thread: threading.Thread | None = None

    def of(self, name: Name) -> State | None:
        """The last report of another node on a file."""
        with self._lock:
            return self._heard.get(name)

    def forget_destination(self, url: str) -> None:
        """Call when no save to it is in progress: reports on failed saves may have arrived late."""
        with self._lock:
            for name in [name for name in self._heard if name[0] == url]:
                del self._heard[name]

    def forget(self, name: Name) -> None:
        with self._lock:
            self._heard.pop(name, None)

    def tell(self, node: int, name: Name, state: State) -> None:
        """From now on reports a file that is written here to `node`; call it again when the file ended."""
        with self._lock:
            self._telling[name] = _Told(node, state, time.monotonic() + 2 * NOT_HEARD_S if state.ended else None)
            if self._thread is None:
                self._thread = threading.Thread(target=self._repeat, name="keepstep-news", daemon=True)
                self._thread.start()
        self._say(name)

    def take(self, node: int, text: str) -> None:
        """Accepts a message from another node. KeepstepError: it is not one of ours."""
        try:
            message = json.loads(text)
            name = (message["url"], message["key"])
            kind = message["kind"]
            if not all(type(each) is str for each in (*name, kind)):
                raise TypeError("names that are none")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise KeepstepError(f"node {node} sent what cannot be read about a file of a checkpoint: {error}") from None
        if kind == "heard":
            with self._lock:
                self._telling.pop(name, None)
            return
        state = State(heard=time.monotonic(), node=node)
        if kind == "written":
            state.sums = sums_json.from_json(message.get("sums"))
        elif kind == "failed":
            state.error = f"node {node}: {message.get('error')}"
        with self._lock:
            known = self._heard.get(name)
            if known is None or not known.ended:
                while len(self._heard) >= MAX_KNOWN:
                    del self._heard[next(iter(self._heard))]  # the oldest, which belongs to a save that was given up
                self._heard[name] = state
        if state.ended:
            self._send(node, json.dumps({"kind": "heard", "url": name[0], "key": name[1]}))
        self._changed()

    def lose(self, node: int) -> None:
        """That node left or was lost. Its last messages may still arrive; if it is alive, it will report again."""
        with self._lock:
            for state in self._heard.values():
                if state.node == node and not state.ended:
                    state.heard = time.monotonic()
                    state.patience_s = LAST_NEWS_S
        self._changed()

    def _say(self, name: Name) -> None:
        with self._lock:
            told = self._telling.get(name)
        if told is None:
            return
        body: dict[str, Any] = {"kind": "writing", "url": name[0], "key": name[1]}
        if told.state.error:
            body |= {"kind": "failed", "error": told.state.error}
        elif told.state.sums is not None:
            body |= {"kind": "written", "sums": sums_json.as_json(told.state.sums)}
        text = json.dumps(body)
        if len(text) > MAX_MESSAGE_BYTES:
            text = json.dumps({**body, "kind": "failed", "sums": [], "error": "the file is too large for its sums"})
        self._send(told.node, text)

    def _repeat(self) -> None:
        while True:
            time.sleep(SAY_AGAIN_S)
            now = time.monotonic()
            with self._lock:
                for name, told in list(self._telling.items()):
                    if told.until is not None and told.until < now:
                        del self._telling[name]
                names = list(self._telling)
            for name in names:
                self._say(name)
