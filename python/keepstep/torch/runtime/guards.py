"""That protected state is as the last commit left it: looked at wherever a fault would put it back as that."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

from keepstep._errors import KeepstepError
from keepstep._session import Session
from keepstep.torch.recovery.committed import Committed, line_to_write
from keepstep.torch.runtime.commit import Commit
from keepstep.torch.state.capsule import Capsule


class Guards:
    """Of one process. `capsule`: its capsule, once there is one."""

    def __init__(
        self, session: Session, committed: Committed, commit: Commit, capsule: Callable[[], Capsule | None]
    ) -> None:
        self._session = session
        self._committed = committed
        self._commit = commit
        self._capsule = capsule
        self.borrowed = 0  # how many sections of `run.restored` this is in: what they do is put back
        self._not_mine: str | None = None  # a tensor that was not as the last commit left it, when this was left

    @property
    def _protects(self) -> bool:
        return self._session.formed and not self._session.rehearsing

    def changed(self, where: str) -> None:
        """Raises where protected state is not as the last commit left it. `where`: what found it."""
        if self._protects and not self.borrowed and (name := self._committed.changed()) is not None:
            raise KeepstepError(line_to_write(name, where))

    def changed_late(self, number: int) -> None:
        """Raises where the loop's body changed, after `step.commit`, what a fault would put back."""
        if what := self._committed.late_change():
            raise KeepstepError(
                f"{what} was changed after step.commit of step {number}. A fault puts it back as the commit left it, "
                "so the job would go on differently. Write step.commit(optimizer.step, schedule.step), or set it at "
                "the beginning of the step"
            )
        self._changed_in_capsule(number)

    def outside_of_a_step(self, first_loop: bool) -> None:
        """Nothing is changed. A forward in front of an entry's first loop may be: an undisturbed run made it once."""
        version, capsule = self._session.engine.version, self._capsule()
        if version == 0 or capsule is None:
            return
        if not first_loop:
            self._changed_in_capsule(version)
        elif self._committed.changed_in_capsule() or capsule.changed_extra():
            capsule.restore(self._session.engine, version)

    def _changed_in_capsule(self, number: int) -> None:
        """Raises where a forward after step `number` changed what is in the capsule."""
        if name := self._committed.changed_in_capsule():
            raise KeepstepError(line_to_write(name, f"a forward in training mode after step {number} did it"))
        capsule = self._capsule()
        if capsule is not None and (name := capsule.changed_extra()):
            raise KeepstepError(line_to_write(f"{name} (get_extra_state)", f"a forward after step {number} did it"))

    def mode(self, module: str | None) -> None:
        """Raises where a module's mode is one that a fault would change."""
        if module is not None:
            raise KeepstepError(
                f"'{module}' has been in another mode (training or evaluation) since after step.commit of step "
                f"{self._session.engine.version}. A fault puts modes back as the commit left them, so the job would go "
                "on differently. Write model.train() behind the validation, or set the mode at the beginning of each "
                "step"
            )

    def before_forward(self, module: torch.nn.Module, in_step: bool) -> None:
        """A protected module's forward begins: outside of a step's own computation it uses what was committed."""
        if in_step and not self.borrowed:
            self.mode(self._committed.left_mode_of_untrained(module))
        computing = in_step and torch.is_grad_enabled()
        if computing or self._commit.updating or self.borrowed or not self._protects:
            return
        if (name := self._committed.changed_before_forward()) is not None:
            raise KeepstepError(line_to_write(name, f"a forward after step {self._session.engine.version} found it"))

    def left(self) -> None:
        """This process was left at any line. What cannot be put back here comes from a peer."""
        engine = self._session.engine
        state, version = engine.state()
        name = self._committed.changed() if state == "clean" else None
        if name is None:
            return
        what = line_to_write(name, f"rank {self._session.rank_or_none} was left while it was so")
        if version == 0:
            raise KeepstepError(what)  # what peers built is compared with rank 0's, whatever that holds
        engine.drop_state()
        print(f"keepstep: {what}\nIt takes the state of step {version} from a peer now.", file=sys.stderr, flush=True)
        self._not_mine = name

    def stale_copy(self, sharded: bool) -> None:
        """Copies in memory are made while training goes on: one may hold what was changed when it should not have."""
        changed, self._not_mine = self._not_mine, None
        if changed is None or not sharded:
            return
        if (name := self._committed.changed(written=False)) is not None:
            version = self._session.engine.version
            raise KeepstepError(line_to_write(name, f"the copy of step {version} was made while it was so"))
