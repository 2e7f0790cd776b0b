"""How a step is committed: all ranks vote, and the update runs, in the one order or the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from keepstep import _engine
from keepstep._errors import KeepstepError
from keepstep._session import Session
from keepstep.torch.integrity import stepping
from keepstep.torch.integrity.released import Released
from keepstep.torch.recovery.committed import Committed
from keepstep.torch.state.capsule import Capsule
from keepstep.torch.state.registry import Registry
from keepstep.torch.state.update import Snapshot

FLAG_VETO = _engine.FLAG_VETO  # of a vote: no rank updates anything in this step
Update = tuple[Callable[[], Any], ...]
Vote = Callable[[], int]  # this rank's; the flags of all. Raises where the step does not count


class Commit:
    """Of one process. `capsule`: its capsule, once there is one."""

    def __init__(
        self, session: Session, registry: Registry, committed: Committed, capsule: Callable[[], Capsule | None]
    ) -> None:
        self._session = session
        self._engine = session.engine
        self._registry = registry
        self._committed = committed
        self._capsule = capsule
        self._released = Released(session)
        self.updating = False
        self._watch: RemovableHandle | None = None  # of optimizers that step outside a commit
        self._before: dict[str, Any] = {}  # versions of the capsule's buffers when the update began

    def versions(self) -> dict[str, Any]:
        """Of the capsule's buffers."""
        capsule = self._capsule()
        return {} if capsule is None else capsule.versions()

    def unchanged_since(self, entered: dict[str, Any]) -> None:
        """Inside of an update what had these versions is as it was then: the update did not change it."""
        for name, version in self.versions().items():
            if name in entered and self._before.get(name) == entered[name]:
                self._before[name] = version

    def vote_and_update(self, update: Update, number: int, vote: Vote, move_on: Callable[[], None]) -> int:
        """The flags of all ranks. `move_on`: what comes with the update, whatever the votes say of it."""
        all_flags = vote()
        self._session.injector.at("after_vote", number)
        self._engine.begin_update()
        self._before = self.versions()
        try:
            self._call((*(() if all_flags & FLAG_VETO else update), move_on), number)
        except BaseException:
            self._engine.drop_state()
            raise
        self._end(number)
        return all_flags

    def update_and_vote(self, update: Update, number: int, vote: Vote, move_on: Callable[[], None]) -> int:
        """The same of an update that communicates: a copy of what it overwrites is put back where it does not count."""
        snapshot = Snapshot(self._registry)
        manner = self._committed.manner()
        self._before = self.versions()
        self._engine.set_state("updating", number - 1)
        try:
            self._call(update, number)
            all_flags = vote()
        except BaseException:
            self._committed.put_back()
            snapshot.restore()
            self._committed.record(manner=False)
            self._engine.set_state("clean", number - 1)
            raise
        self._session.injector.at("after_vote", number)
        if all_flags & FLAG_VETO:
            self._committed.put_back(manner)
            snapshot.restore()
            self._before = self.versions()  # nothing was changed
        move_on()
        self._end(number)
        return all_flags

    def _end(self, number: int) -> None:
        """What is there now is what the commit of this step leaves."""
        capsule = self._capsule()
        moved = {} if capsule is None else capsule.release_changed(self._before)
        self._committed.commit(list_again=bool(moved))
        self._engine.end_update()
        if capsule is not None:
            self._released.after(capsule, moved, self._session.need_rank("step.commit").rank, number)

    def _call(self, update: Update, number: int) -> None:
        """Faults of the phase "update" happen after an optimizer's step."""
        self.updating = True
        hooks = [register_optimizer_step_pre_hook(lambda optimizer, *_: self._refuse_unprotected(optimizer, number))]
        if self._session.injector.active:
            hooks.append(register_optimizer_step_post_hook(lambda *_: self._session.injector.at("update", number)))
        try:
            for function in update:
                function()
        finally:
            self.updating = False
            for hook in hooks:
                hook.remove()

    def refuse_steps_outside(self, in_step: Callable[[], int]) -> None:
        """From here on a protected optimizer that steps outside a commit raises. `in_step`: the step that is computed,
        0 where nothing has to be refused."""
        if self._watch is None:
            self._watch = register_optimizer_step_pre_hook(
                lambda optimizer, *_: self._refuse_outside(optimizer, in_step())
            )

    def close(self) -> None:
        """The function is over: nothing is refused any more, and torch holds nothing of it."""
        if self._watch is not None:
            self._watch.remove()

    def _refuse_outside(self, optimizer: Optimizer, number: int) -> None:
        if number == 0 or self.updating:
            return
        for name, item in self._registry.objects.items():
            if item is optimizer:
                raise KeepstepError(
                    f"step {number}: the optimizer '{name}' steps outside step.commit, before all ranks have voted: a "
                    f"redo would not start from the committed state. Write step.commit({name}.step), or step the one "
                    "that run.prepare returned"
                )

    def _refuse_unprotected(self, optimizer: Optimizer, number: int) -> None:
        """Raises where a fault would take this optimizer away, or its state."""
        if name := stepping.unprotected(self._registry, optimizer):
            kind = type(optimizer).__name__
            raise KeepstepError(
                f"step.commit of step {number}: this {kind} steps '{name}', which is protected, and is not "
                "protected itself: after a fault it would be gone, or without its state. Make it in build(), even if "
                f"it is needed later only, and return keepstep.State(..., {kind.lower()}=...)"
            )
