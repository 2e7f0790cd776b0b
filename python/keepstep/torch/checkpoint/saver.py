"""Saves to one destination of ``run.checkpoint``: the thread that plans and hands over, and how far it lags.

A slow, full or missing destination costs no step. A save that is due while another one is in progress is skipped. After
two skipped saves or a failed one, the destination is behind: the newest state is saved as soon as possible, due or not.
After a failure the destination rests for a while.
"""

from __future__ import annotations

import bisect
import contextlib
import logging
import sys
import threading
import time
from typing import Any

from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

from keepstep._destination import Destination
from keepstep._engine import Assignment
from keepstep._errors import Interruption, KeepstepError
from keepstep._session import Session
from keepstep.checkpoint.background.link import Link
from keepstep.torch.checkpoint import small_values
from keepstep.torch.checkpoint import state_dict as states
from keepstep.torch.checkpoint.exchange import Cancelled, Exchange
from keepstep.torch.checkpoint.handing_over import HandingOver
from keepstep.torch.checkpoint.snapshot import Small, Snapshot

_log = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0  # after a save that failed; twice as long after each that fails, too
LONGEST_PAUSE_S = 60.0
MAX_NAMED = 16  # steps that were left out


class Saver:
    """All but `_save`, `_await_free` and what they call is for the main thread."""

    def __init__(self, session: Session, destination: Destination, job: str, link: Link) -> None:
        self.destination = destination
        self._session = session
        self._job = job
        self._link = link  # of the thread, while it is there
        self._rank: int | None = None  # that this process has entered with
        self._thread: threading.Thread | None = None
        self.compared = False  # that ranks mean the same by the same names
        self.saved = 0  # the newest version that this process knows to be there, whole
        # What follows is known on rank 0 only.
        self._lock = threading.Lock()  # of the list: the thread changes it, too
        self._left_out: list[int] = []  # versions that were due and not saved, since the last one that was
        self._failed = 0  # saves in a row
        self._again_at = 0.0  # not before, on the monotonic clock
        self._began = 0.0
        self._began_version = 0

    @property
    def busy(self) -> bool:
        """Whether this rank's part of the previous save is unfinished."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def behind(self) -> bool:
        """On rank 0: whether to save the next step, due or not."""
        return self._failed > 0 or len(self._left_out) >= 2

    @property
    def resting(self) -> bool:
        """On rank 0: whether a save failed just now, so that the next one waits, due or not."""
        return self._failed > 0 and time.monotonic() < self._again_at

    def due(self, version: int) -> bool:
        return version % self.destination.every_steps == 0

    def leave_out(self, version: int, rank: int) -> None:
        """`version` was due, but the previous save is in progress on some rank, or has just failed."""
        if rank != 0:
            return
        with self._lock:
            self._left_out.append(version)
            count = len(self._left_out)
        if count < 2 or count & (count - 1):
            return
        why = "failed" if self.resting else f"has taken {time.monotonic() - self._began:.0f} s so far"
        self._tell(
            "save_late",
            version,
            f"{count} saves to {self.destination.url} were left out ({_named(self._left_out)}): that of step "
            f"{self._began_version} {why}; {self._newest(version)}",
        )

    def enter(self, given: Assignment) -> None:
        """This process has a rank, perhaps a new one: what that rank's previous process handed over comes first.

        Otherwise there would be more snapshots than destinations, and two saves that end at the same time.
        """
        if self._rank == given.rank or self.busy:
            return
        self._rank = given.rank
        self._began = time.monotonic()
        self._began_version = given.version
        self._thread = threading.Thread(target=self._await_free, args=(given,), name="keepstep-checkpoint", daemon=True)
        self._thread.start()

    def start(self, version: int, exchange: Exchange, snapshot: Snapshot, copies: bool) -> None:
        """Begins to save. `copies`: this destination's thread makes the snapshot, for all."""
        self._began = time.monotonic()
        self._began_version = version
        self._thread = threading.Thread(
            target=self._save, args=(version, exchange, snapshot, copies), name="keepstep-checkpoint", daemon=True
        )
        self._thread.start()

    def join(self) -> None:
        """Waits for the save under way. Raises `Interruption` when the generation ends: others wait for this rank."""
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(0.1)
            if self._session.engine.interrupted():
                raise Interruption("the generation ended before a checkpoint was saved")

    # ---- the thread ----

    def _save(self, version: int, exchange: Exchange, snapshot: Snapshot, copies: bool) -> None:
        began = time.monotonic()
        if copies:
            snapshot.copy()
        attempt = 0
        try:
            attempt = self._write(version, exchange, snapshot)
            self.compared = True
        except Cancelled:
            self._failed = max(1, self._failed)  # by no fault of the destination: the next step makes up for it
            return
        except Exception as error:
            if exchange.rank == 0:
                self._on_failure(version, error)
            return
        finally:
            snapshot.done()
        self._failed = 0
        if exchange.rank == 0:
            self._on_saved(version, time.monotonic() - began, exchange.generation)
            self._after_saved(attempt)

    def _await_free(self, given: Assignment) -> None:
        try:
            for ended in self._link.await_free(given.rank, given.version):
                if ended["error"]:
                    self._on_failure(ended["version"], KeepstepError(ended["error"]))
                    self._link.told(ended["attempt"])
                else:
                    self._on_saved(ended["version"], ended["seconds"], given.generation)  # it began at or above it
                    self._after_saved(ended["attempt"])
        except KeepstepError as error:  # a save will find out, too
            _log.info("%s: %s", self.destination.url, error)

    def _after_saved(self, attempt: int) -> None:
        """Called once the agent has been told: until then a new start of the job may load what is removed here."""
        try:
            self._link.told(attempt)
            self._link.prune(self.destination.keep_last, self.destination.max_age_s)
        except KeepstepError as error:  # the checkpoint is complete all the same
            _log.warning("%s: what is too old could not be removed: %s", self.destination.url, error)

    def _on_failure(self, version: int, error: Exception) -> None:
        pause = min(FIRST_PAUSE_S * 2**self._failed, LONGEST_PAUSE_S)
        self._again_at = time.monotonic() + pause
        self._failed = min(self._failed + 1, 30)
        with self._lock:
            bisect.insort(self._left_out, version)
        self._tell(
            "not_saved",
            version,
            f"step {version} could not be saved to {self.destination.url}: {error}; {self._newest(version)}",
        )

    def _on_saved(self, version: int, seconds: float, generation: int) -> None:
        self.saved = version
        with self._lock:
            missed = [step for step in self._left_out if step < version]
            self._left_out = [step for step in self._left_out if step > version]
        if len(missed) >= 2:
            print(
                f"keepstep: step {version} is saved to {self.destination.url}; {len(missed)} saves before it were not: "
                f"{_named(missed)}",
                file=sys.stderr,
            )
        with contextlib.suppress(Exception):  # the job may be over
            self._session.engine.tell_saved(
                version, generation, self.destination.url, round(seconds, 3), len(missed), missed[-MAX_NAMED:]
            )

    def _tell(self, event: str, version: int, because: str) -> None:
        print(f"keepstep: {because}; training goes on", file=sys.stderr)
        with contextlib.suppress(Exception):
            self._session.note(event, version, because, where=self.destination.url)

    def _newest(self, version: int) -> str:
        if self.saved == 0:
            return "this process saved nothing there so far"
        return f"the newest there is of step {self.saved}, {version - self.saved} steps behind"

    def _write(self, version: int, exchange: Exchange, snapshot: Snapshot) -> int:
        """What torch.distributed.checkpoint.save does, with the ranks' plans over the Store; what is to be written is
        handed over. Returns when it is read no more, on rank 0 when the checkpoint is complete: the save's attempt.

        A failure on any rank reaches rank 0, and rank 0 answers all, so no rank waits for ever.
        """
        writer = HandingOver(self.destination.url, version, self._job, self._link, exchange.generation)
        try:
            self._hand_over(writer, exchange, snapshot)
        finally:
            if writer.has_handed_over:
                with contextlib.suppress(KeepstepError):  # the process that reads it is gone: rank 0 finds out
                    self._link.await_file()
        if exchange.rank == 0:
            try:
                self._link.await_complete()
            except KeepstepError:
                with contextlib.suppress(KeepstepError):
                    self._link.told(writer.attempt)
                raise
        return writer.attempt

    def _hand_over(self, writer: HandingOver, exchange: Exchange, snapshot: Snapshot) -> None:
        planner = DefaultSavePlanner()
        snapshot.copied.wait()
        all_ranks: list[Small] | None = exchange.gather("small", snapshot.small)
        try:
            state, writer.memory = snapshot.state()
            if all_ranks is not None:
                states.require_same([each.digests for each in all_ranks])
                state[states.VALUES] = small_values.merged([each.values for each in all_ranks])
            planner.set_up_planner(state, writer.storage_meta(), exchange.rank == 0)
            writer.set_up_storage_writer(exchange.rank == 0)
            local: Any = writer.prepare_local_plan(planner.create_local_plan())
        except Exception as error:
            local = KeepstepError(str(error))
        plans = exchange.gather("plan", local)
        metadata = None
        failure: Exception | None = None
        if plans is not None:
            try:
                plans, metadata = planner.create_global_plan(_not_an_error(plans))
                plans = writer.prepare_global_plan(plans)
            except Exception as error:
                failure = error
                plans = [None] * len(plans)
        plan = exchange.scatter("global", plans)
        if plan is None:
            if failure is not None:
                raise failure
            raise Cancelled
        try:
            result: Any = writer.write_data(planner.finish_plan(plan), planner).wait()
        except Exception as error:
            result = KeepstepError(str(error))
        results = exchange.gather("result", result)
        if results is not None:
            assert metadata is not None
            writer.finish(metadata, _not_an_error(results))


def _named(steps: list[int]) -> str:
    shown = ", ".join(map(str, steps[-MAX_NAMED:]))
    return f"steps {shown}" if len(steps) <= MAX_NAMED else f"{len(steps)} steps, the last ones {shown}"


def _not_an_error(values: list[Any]) -> list[Any]:
    for rank, value in enumerate(values):
        if isinstance(value, BaseException):
            raise KeepstepError(f"rank {rank}: {value}") from value
    return values
