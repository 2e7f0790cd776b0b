"""This process's place in the job: its engine, and the rank it gets at the first call that needs one.

A worker starts without a rank. It parks at the first operation that needs one: ``os.environ["RANK"]`` (or another
variable that depends on the rank), ``dist.init_process_group``, ``run.rank``, ``run.ddp``, ``run.steps``. Spares park
there too, with the script imported and the model built.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from keepstep import _engine
from keepstep._engine import Assignment
from keepstep._errors import KeepstepError
from keepstep._faults import ChooseFlip
from keepstep._inject import Injector

MAX_LEARNED_BYTES = 96 * 1024  # of module names in one message


class PassedOver(BaseException):
    """Raised where a recoverable function that has ended in this job needs a rank, to leave it."""


class Session:
    """One per worker process, created by `keepstep.worker`."""

    def __init__(self, engine: _engine.Engine) -> None:
        self.engine = engine
        self.welcome = engine.welcome
        self.spare = self.welcome.spare
        self._given: Assignment | None = None
        self.recoverable = False  # a recoverable function was entered
        self.in_function = False
        self.functions = 0  # number of recoverable functions that have ended for this process
        self.passing = False  # over a function that has ended in this job: entered without a rank, for what it sets up
        # At version 0 this process has the state of the previous function; only its shape if it passed over that
        # function (docs/design/functions.md).
        self.carries_state = False
        self.unfilled_from = ""  # that function's name
        self.building = False
        self.building_with_rank = False  # in run.setup(with_rank=True): without peers
        self.capsule_ids: Callable[[], set[int]] = set  # ids of buffers that are not protected state
        self.injector = Injector(self, self.welcome.inject)
        self.choose_flip: ChooseFlip | None = None  # for faults that flip a bit; set once there is a run
        self.rehearsal: Any = None  # a keepstep.torch.recovery.rehearsal.Rehearsal, in a spare's first entry
        self.before_parking: Callable[[], None] | None = None  # ends the process if it is not fit for a rank
        self.before_waiting: list[Callable[[], None]] = []  # called each time this process waits for a rank
        self.users_health_check: Callable[[], None] | None = None
        self.rehearsed: tuple[bool, float, str] | None = None  # done, seconds, because
        self.witness: Any = None  # a keepstep.torch.integrity.witness.Witness, under `keepstep certify`
        self.script_path = ""  # where the script's own modules are found
        self._modules_at_start = set(sys.modules)

    # ---- messages ----

    def note(self, event: str, step: int, because: str, where: str = "") -> None:
        """Writes a line to the journal. `event`: one that the agent accepts; `where`: a checkpoint destination."""
        self.engine.tell_note(event, step, because[:4000], where)

    def store(
        self, op: str, key: str, value: bytes = b"", timeout_ms: int = -1, ends_with_generation: bool = True
    ) -> tuple[bool, bool, bool, bytes]:
        """Sends one request to the agent's Store. Returns (answered, interrupted, ok, value)."""
        return self.engine.store(op, key, value, timeout_ms, ends_with_generation)

    def key(self, name: str) -> str:
        """A key in the Store that belongs to this recoverable function and lasts as long as the job."""
        return f"job/{self.functions}/{name}"

    def claim_once(self, key: str) -> bool:
        """True for the first worker of the whole job that asks for `key`."""
        return self.count(key) == 1

    def count(self, key: str) -> int:
        """How many workers of the whole job have asked for `key`, including this one; 0 if the job ended."""
        answered, _, ok, value = self.store("add", key, b"1", -1, ends_with_generation=False)
        return int(value) if answered and ok else 0

    def through(self, key: str) -> None:
        """This rank is through with what `key` names. Once all ranks of one generation are, it is over for good."""
        given = self.need_rank("a section that all ranks end")
        counted = f"{key}/{given.generation}"
        if self.count(counted) == given.world_size:
            self.store("set", key, b"1", ends_with_generation=False)
            self.store("delete", counted, ends_with_generation=False)

    def not_through(self, key: str) -> None:
        """What this rank and others said in this generation by `through` is not so."""
        given = self.need_rank("a section that all ranks end")
        self.store("delete", f"{key}/{given.generation}", ends_with_generation=False)
        self.store("delete", key, ends_with_generation=False)

    def is_over(self, key: str) -> bool:
        """Whether all ranks of one generation were `through` with it, so all that enter again know the same."""
        _, _, known, _ = self.store("check", key, ends_with_generation=False)
        return known

    def kept(self, key: str) -> bytes | None:
        """What the Store has under `key`, in any generation of the job; None if nothing."""
        if not self.is_over(key):
            return None
        return self.store("get", key, ends_with_generation=False)[3]

    # ---- rank ----

    @property
    def assignment(self) -> Assignment | None:
        """The newest assignment; None before there is one."""
        return self.rehearsal.assignment if self.rehearsing else self._given

    @property
    def formed(self) -> bool:
        """Whether this rank's generation formed, and this rank has not left it."""
        return bool(self.rehearsal.entered) if self.rehearsing else self.engine.formed

    @property
    def rehearsing(self) -> bool:
        """Whether the assignment is only a spare's rehearsal."""
        return self.rehearsal is not None and bool(self.rehearsal.begun)

    @property
    def rank_or_none(self) -> int | None:
        return None if self.assignment is None else self.assignment.rank

    def need_rank(self, what: str) -> Assignment:
        """The current assignment; parks until there is one. `what`: what needs it, for messages."""
        if self.building:
            raise KeepstepError(
                f"run.setup(build): {what} needs a rank, but build runs before this process has one (a spare builds "
                "the same thing and may become any rank). Move what depends on the rank out of build; seeds that must "
                "differ per rank are set by run.steps."
            )
        if self.passing:
            raise PassedOver
        if self.assignment is None and self.rehearsal is not None:
            self.rehearsal.begin()
        if self.assignment is None:
            self._park()
        assert self.assignment is not None
        return self.assignment

    def _park(self) -> None:
        if self.welcome.learn:
            self.engine.tell_preload(self._learned_modules(), self.script_path)
        if self.before_parking is not None:
            self.before_parking()
        self.engine.tell_parked(self.rehearsed, self.functions)
        self.next_assignment()

    def next_assignment(self) -> Assignment:
        """Waits for a rank in a newer generation and puts it into the environment."""
        for each in self.before_waiting:
            each()
        self._given = self.engine.wait_assignment()
        os.environ.update(self._given.environment)
        return self._given

    def start_again(self) -> None:
        """This process enters another recoverable function, after all ranks returned from the previous one."""
        self.functions += 1
        self._given = None
        self.rehearsed = None
        self.carries_state = True
        self.spare = False  # it was a rank
        self.engine.start_again()

    def form_plain(self) -> None:
        """Joins the generation without protected state: for scripts that have no recoverable function."""
        self.need_rank("a process group")
        if not self.formed:
            self.engine.ready()
            self.engine.form()

    def _learned_modules(self) -> list[str]:
        """What the script imported in addition to the zygote, in order: worth importing there before a fork."""
        learned = []
        room = MAX_LEARNED_BYTES
        for name in [name for name in sys.modules if name not in self._modules_at_start]:
            spec = getattr(sys.modules.get(name), "__spec__", None)
            if getattr(spec, "_initializing", False):
                continue  # its import is waiting for a rank, and the zygote has none
            if name != "__main__" and spec is not None and spec.origin and spec.origin != "built-in":
                room -= len(name) + 4
                if room < 0:
                    break
                learned.append(name)
        return learned


_session: Session | None = None


def set_session(session: Session | None) -> None:
    global _session
    _session = session


def session_or_none() -> Session | None:
    """This process's session; None outside ``keepstep run``."""
    return _session


def session(what: str) -> Session:
    """This process's session, or an error that says how to start the script."""
    if _session is None:
        script = os.path.basename(sys.argv[0] or "train.py")
        raise KeepstepError(
            f"{what} works in a process that keepstep started; run: keepstep run --nproc-per-node 4 {script}"
        )
    return _session


class RankEnviron(os._Environ):  # type: ignore[type-arg]
    """``os.environ`` of a worker: reading a variable that depends on the rank parks until there is a rank."""

    def __getitem__(self, key: str) -> str:
        current = _session
        if current is not None and current.assignment is None and key in RankEnviron.needs_rank:
            current.need_rank(f'os.environ["{key}"]')
        return super().__getitem__(key)  # type: ignore[no-any-return]

    needs_rank: frozenset[str] = frozenset()


def watch_environment(names: Iterable[str]) -> None:
    """From now on, reading one of `names` from ``os.environ`` waits for a rank."""
    RankEnviron.needs_rank = frozenset(names)
    for name in RankEnviron.needs_rank:
        os.environ.pop(name, None)
    os.environ.__class__ = RankEnviron
