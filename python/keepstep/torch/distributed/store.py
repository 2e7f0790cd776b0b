"""c10d's Store, answered by the node's agent.

Under ``keepstep run`` there is one key space per generation: a new generation starts with none. For ranks that keepstep
did not start there is one per job.
"""

from __future__ import annotations

import datetime
import time

import torch.distributed as dist

from keepstep import _engine
from keepstep._session import Session

MAX_VALUE_BYTES = _engine.MAX_STORE_VALUE_BYTES
_DEFAULT_TIMEOUT = datetime.timedelta(minutes=30)
_ROUND_TRIP_S = 0.05  # at least, for a key that may be there

Answer = tuple[bool, bool, bool, bytes]  # answered, interrupted, ok, value


class AgentStore(dist.Store):  # type: ignore[name-defined, misc]
    """A Store without a root. Subclasses choose the agent and the key space."""

    def __init__(self) -> None:
        super().__init__()
        self._timeout = _DEFAULT_TIMEOUT

    def _request(self, op: str, key: str, value: bytes, timeout_ms: int) -> Answer:
        raise NotImplementedError

    def _lost(self, key: str) -> BaseException:
        """What to raise if the answer will never arrive."""
        raise NotImplementedError

    def _absent(self) -> str:
        """A reason why an answer may be late."""
        return ""

    def _ask(
        self, op: str, key: str, value: bytes = b"", within: tuple[float, float] | None = None
    ) -> tuple[bool, bytes]:
        """`within`: seconds for the answer, and those to name if none comes."""
        if len(value) > MAX_VALUE_BYTES:
            raise ValueError(f"store: the value of '{key}' has {len(value)} bytes, {MAX_VALUE_BYTES} is the most")
        left_s, limit_s = within or (self._timeout.total_seconds(), self._timeout.total_seconds())
        answered, interrupted, ok, result = self._request(op, key, value, int(left_s * 1000))
        if answered:
            return ok, result
        if interrupted:
            raise self._lost(key)
        raise dist.DistStoreError(f"store: '{key}' was not set within {limit_s:g} s{self._absent()}")

    def set(self, key: str, value: str | bytes) -> None:
        self._ask("set", key, _bytes(value))

    def get(self, key: str) -> bytes:
        return self._ask("get", key)[1]

    def add(self, key: str, amount: int) -> int:
        return int(self._ask("add", key, str(amount).encode())[1])

    def compare_set(self, key: str, expected_value: str | bytes, desired_value: str | bytes) -> bytes:
        expected = _bytes(expected_value)
        pair = str(len(expected)).encode() + b":" + expected + _bytes(desired_value)
        return self._ask("compare_set", key, pair)[1]

    def check(self, keys: list[str]) -> bool:
        return all(self._ask("check", key)[0] for key in keys)

    def delete_key(self, key: str) -> bool:
        return self._ask("delete", key)[0]

    def num_keys(self) -> int:
        return int(self._ask("count", "")[1])

    def wait(self, keys: list[str], timeout: datetime.timedelta | None = None) -> None:
        limit_s = (self._timeout if timeout is None else timeout).total_seconds()
        end = time.monotonic() + limit_s
        for key in keys:
            self._ask("wait", key, within=(max(end - time.monotonic(), _ROUND_TRIP_S), limit_s))

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self._timeout = timeout

    @property
    def timeout(self) -> datetime.timedelta:
        return self._timeout


class GenerationStore(AgentStore):
    """Of a rank of ``keepstep run``. Lives as long as the process; its keys belong to the generation this process is in
    at the time of the call."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session

    def _request(self, op: str, key: str, value: bytes, timeout_ms: int) -> Answer:
        generation = self._session.need_rank("the store").generation
        if self._session.rehearsing:
            return (True, False, *self._session.rehearsal.ask(op, key, value))
        return self._session.store(op, f"{generation}/{key}", value, timeout_ms)

    def _lost(self, key: str) -> BaseException:
        return _engine.Interrupted(f"the generation ended while waiting for '{key}' in the store")


class NodeStore(AgentStore):
    """Of a rank that somebody else started. `name`: the key space."""

    def __init__(self, link: _engine.NodeLink, name: str) -> None:
        super().__init__()
        self._link = link
        self._name = name

    def _request(self, op: str, key: str, value: bytes, timeout_ms: int) -> Answer:
        try:
            return self._link.store(op, f"{self._name}/{key}", value, timeout_ms)
        except RuntimeError as error:
            raise dist.DistStoreError(str(error)) from None

    def _absent(self) -> str:
        absent = self._link.store("absent", "", b"", 1000)[3].decode()
        return f"; not connected: {absent}" if absent else ""

    def _lost(self, key: str) -> BaseException:
        return dist.DistStoreError(f"store: this node's agent ended; '{key}' will never be set")


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
