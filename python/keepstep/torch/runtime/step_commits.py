"""All that happens at the commit of a step, in order: what is checked, the vote and the update, what follows them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from keepstep._errors import KeepstepError
from keepstep.torch.distributed import agreement, nccl
from keepstep.torch.integrity.checks import Checks
from keepstep.torch.integrity.digests import Digests
from keepstep.torch.integrity.rechecks import Rechecks
from keepstep.torch.recovery import rehearsal
from keepstep.torch.runtime.commit import FLAG_VETO
from keepstep.torch.runtime.step_loops import interruptible
from keepstep.torch.step.open_step import OpenStep
from keepstep.torch.step.steps import Step
from keepstep.torch.step.without_loss import WithoutLoss
from keepstep.torch.tensors import cuda

if TYPE_CHECKING:
    from keepstep.torch.runtime.run import Run

Veto = Callable[[Any], str | bool | None]  # of a step: why it is not to be applied


class StepCommits:
    """Of one process. For the main thread.

    Attributes:
        votes: the digests that go with them.
        checks: of ``--check``.
    """

    def __init__(self, run: Run, function: Callable[..., Any]) -> None:
        self._run = run
        self._session = run._session
        self._engine = run._engine
        self._registry = run._registry
        self.votes = Digests(self._session, self._registry)
        self.checks = Checks(self._session, self._registry, function)
        self._rechecks: Rechecks | None = None  # before `built`
        self._without_loss = WithoutLoss(self._session)
        self._cuda_devices: list[torch.device] = []  # of the protected state

    def forget(self) -> None:
        """The state is built again."""
        self.checks.forget()
        self.votes = Digests(self._session, self._registry)
        self._rechecks = None
        self._cuda_devices = []

    def built(self) -> None:
        """The state is complete, and still as it was built."""
        self._rechecks = Rechecks(self._registry)

    def enter_generation(self) -> None:
        """This process has joined its peers."""
        run = self._run
        self.votes.enter(run.rank, run.world_size)
        self.checks.forget()
        self.checks.search_again()
        if run.generation > 1:
            self.checks.stop()

    def enter_loop(self) -> None:
        self._cuda_devices = self._registry.cuda_devices()

    def commit(
        self, step: OpenStep, update: tuple[Callable[[], Any], ...], communicates: bool, veto: Veto | None
    ) -> None:
        """`Step.commit`, for any loop's steps."""
        run = self._run
        self._refuse(step)
        number = step.number
        self._before_vote(step)
        flags = 0 if veto is None else self._ask(veto, step)
        self.votes.record(number)
        step.voted = True
        commit = run._commit.update_and_vote if communicates else run._commit.vote_and_update
        all_flags = commit(update, number, functools.partial(self._vote, flags), step._move_position)
        step.vetoed = bool(all_flags & FLAG_VETO)
        step.committed = True
        self._after_update(step, all_flags)

    def _refuse(self, step: OpenStep) -> None:
        run = self._run
        if step is not run._loops.step or step.committed:
            raise KeepstepError(f"step {step.number} is over; call step.commit once, inside the loop over run.steps")
        if run.rehearsing:
            raise rehearsal.Over
        if run._guards.borrowed:
            raise KeepstepError("step.commit inside run.restored(): what it commits would be put back")
        if step.voted:
            raise KeepstepError(
                f"step {step.number} was voted on and its update failed: let the exception pass, so that this rank's "
                "state is hydrated again"
            )

    def _before_vote(self, step: OpenStep) -> None:
        """What this rank computed is complete, is saved where it must be, and changed nothing that is protected."""
        run, engine, number = self._run, self._engine, step.number
        capsule = run._entries.capsule
        if capsule is not None:
            if not capsule.empty:
                capsule.save(engine, number)
            engine.copy_capsule(number)
        step._check_complete()
        if run._shards.wanted:
            run._shards.wait(number - 1)
        run._saves.wait_copied()
        engine.record_loss(number, *step._loss_to_record())
        if waited := step.data_waits.line(run.rank):
            engine.log(number, waited)
        self.checks.at_commit(number)
        run._guards.changed(f"step.commit of step {number} found it")
        run._guards.mode(run._committed.left_mode())
        if self._session.witness is not None:
            self._session.witness.computed(number, step.sample_ids)
        self._session.injector.at("before_vote", number)

    def _after_update(self, step: OpenStep, all_flags: int) -> None:
        """The step is committed: tells everyone who copies, saves, publishes or checks what it left."""
        run, number = self._run, step.number
        if not step.keeps_gradients:
            self._registry.drop_gradients()
        if self._rechecks is not None:
            self._rechecks.after(number, self._changed_on_any_rank)
        if run._shards.wanted:
            run._shards.protect(number)
        if run._saves.manager is not None:
            run._saves.manager.after_step(number, all_flags, run._entries.capsule_ids())
        step._global_loss = self._engine.mean_loss(number)
        if isinstance(step, Step) and not run._shards.wanted:  # of a pipeline only the last stage has a loss
            self._without_loss.after(step)
        if self._session.witness is not None:
            self._session.witness.committed(number, step.loss, self._registry, run._entries.capsule_ids())
        self.checks.after()
        run._publications.after(number)

    def _changed_on_any_rank(self, here: set[str], known: set[str]) -> set[str]:
        """Names that are `here` on any rank, where ranks hold different parts; else `here`."""
        if not self._run._shards.divided:
            return here
        found = agreement.names_on_any_rank(here, known)
        self._run._check_interrupted()
        return found

    def _ask(self, veto: Veto, step: OpenStep) -> int:
        """The flags of this rank's vote."""
        reason = veto(step)
        if not reason:
            return 0
        text = reason if isinstance(reason, str) else "its veto function said so"
        rank, number = self._run.rank, step.number
        self._session.note("veto", number, f"rank {rank} vetoes the update of step {number}: {text}")
        return FLAG_VETO

    def _vote(self, flags: int) -> int:
        """Votes and returns the flags of all ranks. Raises if the step does not count."""
        if broken := self._engine.broken_link():
            raise RuntimeError(broken)  # the failure may have spoilt the gradients, so no vote for them
        if self._cuda_devices:
            cuda.settle(self._cuda_devices, nccl.backends())
        if self._run._saves.manager is not None:
            flags |= self._run._saves.manager.flags()
        return interruptible(functools.partial(self._engine.vote, flags))
