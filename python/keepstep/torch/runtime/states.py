"""What ``run.setup`` built: once per process, with or without a rank, and protected field by field."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from keepstep import _engine
from keepstep._errors import KeepstepError
from keepstep._state import State, protected_fields
from keepstep.torch import seeds
from keepstep.torch.data_parallel import replicas
from keepstep.torch.recovery import rehearsal
from keepstep.torch.sharded import fsdp, pipelining
from keepstep.torch.tensors import dtensor

if TYPE_CHECKING:
    from keepstep.torch.runtime.run import Run


def _checked(built: object) -> State:
    if not isinstance(built, State):
        raise KeepstepError(
            f"run.setup: build() returned a {type(built).__qualname__}; return "
            "keepstep.State(model=model, optimizer=optimizer)"
        )
    return built


class States:
    """Of one process. For the main thread. `spoilt`: by this process's rehearsal, until it is known to be gone."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._session = run._session
        self._registry = run._registry
        self._states: dict[str, State] = {}
        self._of_rank: set[str] = set()  # names of those that need a rank to be built
        self._set_up: set[str] = set()  # names of those that this entry has asked for
        self.spoilt: rehearsal.Spoilt | None = None

    @property
    def set_up(self) -> bool:
        """Whether this entry has asked for any."""
        return bool(self._set_up)

    def all(self) -> list[State]:
        return list(self._states.values())

    def without_rank(self) -> dict[str, State]:
        """Those that any process can build, by name."""
        return {name: state for name, state in self._states.items() if name not in self._of_rank}

    def clear(self) -> None:
        """The function was left: the next entry asks again."""
        self._set_up.clear()

    def forget(self) -> None:
        """The next entry builds again."""
        self._states.clear()
        self._set_up.clear()

    def setup(self, build: Callable[[], State], name: str, sharded: bool, with_rank: bool) -> State:
        if name in self._set_up:
            which = f"'{name}'" if name else "without a name"
            raise KeepstepError(
                f"run.setup: the state {which} is set up already in this entry; give this one a name of its own: "
                "run.setup(build, name=...)"
            )
        if "/" in name or "." in name:
            raise KeepstepError(f"run.setup: the name '{name}' holds a '/' or a '.'")
        state = self._states.get(name)
        if state is None:
            if self._session.formed:
                raise KeepstepError(
                    "run.setup comes too late: this rank trains already; call it before run.ddp, in every entry and on "
                    "all ranks"
                )
            if sharded or with_rank:
                state = self._build_with_rank(build, name, sharded)
                self._of_rank.add(name)
            else:
                state = self._build(build, name)
        self._protect(name, state)
        self._states[name] = state
        self._set_up.add(name)
        return state

    def _protect(self, name: str, state: State) -> None:
        fields = {f"{name}.{field}" if name else field: item for field, item in protected_fields(state).items()}
        known = self._registry.objects
        if all(known.get(each) is item for each, item in fields.items()):
            return
        if both := ({name} & known.keys()) | (fields.keys() & self._states.keys()):
            raise KeepstepError(f"run.setup: '{both.pop()}' is the name of a state and of a field; rename one of them")
        if self.spoilt is not None:
            self.spoilt.refuse(self._session, fields)
        for each, item in fields.items():
            self._registry.add(each, item)
        fsdp.check_can_recover(self._registry.modules())
        self._registry.check_carried()  # what cannot be sent is reported now, not at the first fault

    def _build(self, build: Callable[[], State], name: str) -> State:
        self._session.injector.at("build", self._run.version + 1)
        seeds.seed_all(_engine.mix_seed(self._run.seed, zlib.crc32(name.encode())))
        self._session.building = True
        try:
            return _checked(build())
        finally:
            self._session.building = False

    def _build_with_rank(self, build: Callable[[], State], name: str, sharded: bool) -> State:
        run = self._run
        self._session.need_rank("run.setup(sharded=True)" if sharded else "run.setup(with_rank=True)")
        if run.rehearsing:
            raise rehearsal.NotWorthIt
        from keepstep.torch.distributed.hosts import shard_building

        seeds.seed_all(_engine.mix_seed(run.seed, 1 << 32, zlib.crc32(name.encode())))
        self._session.building_with_rank = True
        try:
            run._entries.init_process_group()
            with dtensor.alone():
                built = _checked(build())
        finally:
            self._session.building_with_rank = False
            shard_building.close()
        replicas.keep_groups()
        pipelining.remember()
        if sharded:
            run._shards.divided = True
            run._engine.built()
        return built
