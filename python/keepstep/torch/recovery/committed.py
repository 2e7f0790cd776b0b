"""What the last commit left, recorded cheaply enough to do so at every commit. It restores that state when the function
was left, and detects changes of protected state outside a commit (docs/design/left_anywhere.md).

Everything is walked and listed once; after that a commit makes a few calls that loop over lists in C.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from keepstep._errors import KeepstepError
from keepstep.torch.recovery.manner import Holders, Manner
from keepstep.torch.recovery.pieces import OptimizerStates, Pieces, Schedules, point_back
from keepstep.torch.state.registry import Registry
from keepstep.torch.state.update import Snapshot

QUICK_TENSORS = 16  # of all, checked before each forward in a validation
MAX_NEW_STATES = 8  # an optimizer that replaces its state's tensors more often than that is not checked


def line_to_write(name: str, where: str) -> str:
    """The error text for a protected tensor that was changed outside a commit."""
    return (
        f"'{name}' was changed outside of step.commit; {where}. A rank that is replaced, or left at any line, would go "
        "on with other values than an undisturbed run. If it is to count, move it into step.commit(...), or give it to "
        "run.prepare(..., schedule=...), ReduceLROnPlateau as plateau=. If it is temporary (averaged weights, an "
        "optimizer's eval()), write:\n\n"
        "    with run.restored():\n        ...  # swap, evaluate\n\nwhich puts everything back at its end, bit for bit."
    )


class Committed:
    """What the last commit left in this process. For the main thread."""

    def __init__(
        self,
        registry: Registry,
        capsule_ids: Callable[[], set[int]],
        capsule_versions: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        self._registry = registry
        self._capsule_ids = capsule_ids
        self._capsule_versions = capsule_versions
        self.position = 0  # batches that the committed steps took from the loader of `run.prepare`, over all ranks
        self.forget()

    def forget(self) -> None:
        """Everything is built and protected again."""
        self.wrapped: dict[int, bool] = {}  # the current `Manner.wrapped`
        self._holders: Holders | None = None
        self._manner = Manner([], [], {}, [], {})
        self._loop = [0, 0]  # how many ranks commit in this loop, and where it ends (`begin_loop`)
        self._committed_in = [0, 0]  # the loop of the last commit; no ranks: none since the job was started
        self._came_to_it = False  # this entry has reached that loop: from here on all is as in an undisturbed run
        self._began: tuple[int, Manner] | None = (
            None  # how much was done, and settings, where an undisturbed run began a loop
        )
        self._set_between: str | None = None  # what such a run changed between two loops
        self._modes: list[bool] = []  # in which a step may begin, of each module
        self._pieces = self._quick = Pieces([])
        self._states = OptimizerStates({})
        self._schedules = Schedules({})
        self._new_states = 0  # how often they had changed
        self._looked = False  # since the last commit, before a forward
        self._in_capsule: dict[str, Any] = {}  # its versions
        self._late_modes: list[int] = []  # modules that began the step in another mode than the commit had left
        self._late_wholes: set[int] = set()  # ids of what contains them, if no optimizer trains it

    # ---- the end of a commit, and of joining a generation ----

    def commit(self, list_again: bool = False) -> None:
        """Like `record`, at a commit."""
        self._committed_in = self._loop
        # An average that a validation used keeps its earlier mode, as in an entry after a fault.
        late, modes = self._late_untrained(), self._modes
        self.record(list_again=list_again)
        for number in late:
            self._manner.training[number] = modes[number]

    def start(self) -> None:
        """The job started from a checkpoint: what its function sets holds, even if commits had left other settings."""
        self._committed_in = [0, 0]

    def record(self, manner: bool = True, list_again: bool = False) -> None:
        """Records the current state as what the commit left; without `manner`, the tensors only. `list_again`: the
        capsule now has other buffers."""
        in_place = self._pieces.take()
        if self._holders is None or list_again or not in_place or self._holders.replaced() or self._other_states():
            self._list()
            self._pieces.take()
        assert self._holders is not None
        if manner:
            self._manner = self._holders.take(self.wrapped)
            self._modes = self._manner.training
        self._schedules = Schedules(self._registry.objects)
        self._in_capsule = self._capsule_versions()
        self._looked = False

    def begin_loop(self, done: int, world: int, until: int, version: int) -> str | None:
        """Called before each loop of an entry. Returns a warning for the user if an undisturbed run may have begun the
        loop with other modes and options.

        If no commit was made since this start and with this many ranks, what the entry sets holds. Otherwise the last
        commit was made in one of the loops: up to the end of that loop an undisturbed run has what the commit left;
        after it, it does what this entry does.

        Args:
            done: how much was committed, in steps, or in any unit in which a loop has a fixed end.
            world: how many ranks there are.
            until: where this loop ends, in that unit.
            version: how many steps were committed, for messages.

        Raises:
            KeepstepError: protected state was changed, or an undisturbed run began this loop with other options.
        """
        self._loop = [world, until]
        ranks, last = self._committed_in
        came_to_it = self._came_to_it
        self._came_to_it = came_to_it or ranks != world or until > done or until >= last
        if version == 0:
            joined = self._manner
            self._holders = None  # modules may have other parts now; every entry does it again on all ranks
            self.record()
            if [*map(len, joined[:2])] == [*map(len, self._manner[:2])]:
                self._manner = joined  # and it changes the options and modes of these
            return None
        if name := self.changed():
            where = f"this entry of the function, which begins at step {version}, did it"
            if came_to_it:
                where = f"what follows the loop that ended with step {version} did it"
            raise KeepstepError(line_to_write(name, where))
        assert self._holders is not None
        self._modes = modes = self._holders.modes()
        doubt = None
        if ranks == world and not came_to_it and (done < last or until <= done):
            self._holders.put_back(self._manner)
            self._modes = self._manner.training
        elif ranks == world and not came_to_it:
            doubt = self._another_beginning(done, version)
        elif ranks == world and done < last:
            self._refuse_after_break(version)
            self._modes = self._manner.training
        elif ranks == world and done == last:
            self._began = done, self._holders.take({})
            self._set_between = self.late_change() or self._set_between
            untrained = self._holders.untrained
            left = set(self._holders.other_modes(self._manner.training)) - untrained
            # If a whole module is in evaluation mode, a validation left it that way.
            of_commit = any(self._holders.whole(n) and not modes[n] for n in left)
            both = enumerate(zip(self._manner.training, modes, strict=True))
            self._modes = [was if of_commit or number in untrained else now for number, (was, now) in both]
        self.record(manner=False, list_again=bool(self._pieces.moved()))  # same values, other memory: a memory format
        return doubt

    def continue_loop(self, until: int) -> None:
        """The loop ends there, and not where it was said to: a step that began in it goes on."""
        self._loop = [self._loop[0], until]

    def _another_beginning(self, done: int, version: int) -> str | None:
        """The entry begins with this loop; the last commit's loop ended before it. See `begin_loop`."""
        assert self._holders is not None
        before = self._began
        if before and before[0] == done and (what := self._holders.late_change(before[1])):
            raise KeepstepError(
                f"{what} is another one in front of the loop that begins at step {version} than it was before the "
                "fault. What changes between two loops must follow from the step alone, and be set in front of the "
                'next one. Write group["lr"] = base * 0.1 ** (epoch // 30) in front of run.steps, not '
                'group["lr"] *= 0.1 behind it; what only the beginning of training needs belongs into build()'
            )
        if what := self.late_change():
            return (
                f"{what} stays as it was set in front of the loop that begins at step {version}; the commit of that "
                "step left another"
            )
        if self._set_between:
            return (
                f"{self._set_between} was changed between earlier loops, but not in front of the one that begins at "
                f"step {version}, where the function was entered after a fault. If it changes after each loop, this "
                "change is missing: set it in front of run.steps, by a rule that follows from the step"
            )
        return None

    def _refuse_after_break(self, version: int) -> None:
        """Refuses: the last commit's loop was left by `break`, so after a fault the function is in the middle of it."""
        if what := self.late_change():
            raise KeepstepError(
                f"{what} was changed after a loop was left at step {version}, before its end. A fault puts it back as "
                "the commit left it, so the job would go on differently. Write "
                f"run.steps(last_step={version}), without break, for a loop that ends here, or set it at the "
                "beginning of the step"
            )

    def _list(self) -> None:
        self._holders = Holders(self._registry, self._capsule_ids())
        named = self._holders.named
        self._states = OptimizerStates(self._registry.objects if self._new_states < MAX_NEW_STATES else {})
        self._pieces = Pieces([*named, *self._states.named])
        self._quick = Pieces(named).spread(QUICK_TENSORS)

    def _other_states(self) -> bool:
        """Whether optimizers have replaced listed tensors. Those that replace them in each step are left out."""
        if self._new_states >= MAX_NEW_STATES or not self._states.others():
            return False
        self._new_states += 1
        return True

    # ---- what was changed since ----

    def changed(self, written: bool = True) -> str | None:
        """The name of the first protected tensor or schedule that is not as the commit left it, as far as can be
        seen."""
        if self._holders is None:
            return None
        return (
            self._holders.replaced()
            or self._states.replaced()
            or self._schedules.stepped()
            or self._pieces.first_changed(written=written)
        )

    def changed_in_capsule(self) -> str | None:
        """The name of a buffer of the capsule that a forward has changed since the commit."""
        now = self._capsule_versions()
        return next((name for name, version in now.items() if self._in_capsule.get(name, version) != version), None)

    def late_change(self) -> str | None:
        """What else differs from what the commit left, and would be lost in a fault; None also before a commit."""
        return None if self._holders is None else self._holders.late_change(self._manner)

    def begin_step(self) -> None:
        """The loop's body begins: a mode that it does not set itself was left by code after the commit."""
        late = [] if self._holders is None else self._holders.other_modes(self._modes)
        if late != self._late_modes:
            self._late_modes = late
            self._late_wholes = set() if self._holders is None else self._holders.around(self._late_untrained())

    def left_mode(self) -> str | None:
        """The path of a trained module that has been in another mode since before the step began."""
        if self._holders is None or not self._late_modes:
            return None
        still = self._still_late() - self._holders.untrained
        return self._holders.path(min(still)) if still else None

    def left_mode_of_untrained(self, module: torch.nn.Module) -> str | None:
        """The same for a part of `module` that no optimizer trains: its mode matters when it computes in a step."""
        if id(module) not in self._late_wholes:
            return None
        assert self._holders is not None
        parts = {id(part) for part in module.modules()}
        late = [number for number in self._late_untrained() if id(self._holders.modules[number]) in parts]
        return self._holders.path(min(late)) if late else None

    def _late_untrained(self) -> set[int]:
        return set() if self._holders is None or not self._late_modes else self._still_late() & self._holders.untrained

    def _still_late(self) -> set[int]:
        assert self._holders is not None
        return set(self._holders.other_modes(self._modes)) & set(self._late_modes)

    def changed_before_forward(self) -> str | None:
        """The same, before the first forward after a commit; before later ones for some tensors only."""
        if self._holders is None:
            return None
        if not self._looked:
            self._looked = True
            self._quick.take()
            return self.changed()
        return self._quick.first_changed(quick=True)

    # ---- the function was left ----

    def manner(self) -> Manner | None:
        """The current settings of modules and optimizers; None before the first loop."""
        return None if self._holders is None else self._holders.take(self.wrapped)

    def left(self) -> None:
        """The function was left: the next entry starts from its first loop."""
        self._came_to_it = False
        self.put_back()

    def put_back(self, manner: Manner | None = None) -> None:
        """Restores the settings of modules and optimizers, and the tensors' memory, but not its contents. Without
        `manner`, as the commit left them."""
        if self._holders is None:
            return
        point_back(self._pieces)
        self._holders.put_back(self._manner if manner is None else manner)

    def put_back_manner(self) -> None:
        """Restores the settings of modules and optimizers as the commit left them."""
        if self._holders is not None:
            self._holders.put_back(self._manner)

    @contextmanager
    def modes_kept(self) -> Iterator[None]:
        """Restores modes, and what needs gradients, at the end."""
        manner = self.manner()
        yield
        if self._holders is not None and manner is not None and len(manner.training) == len(self._holders.modules):
            self._holders.put_back(manner, with_groups=False)

    @contextmanager
    def as_wrapped(self, module: torch.nn.Module) -> Iterator[None]:
        """Used while DDP wraps `module`: DDP waits for the parameters that need gradients at that time.

        Before the last commit's loop these are the same as when DDP was made before, even if the commit left others (a
        GAN's frozen critic), unless this entry has changed them itself.
        """
        before = {} if self._came_to_it else self._manner.wrapped
        known = (
            dict(zip(map(id, self._holders.parameters), self._manner.requires_grad, strict=True))
            if self._holders
            else {}
        )
        unchanged = self._holders is not None and self.changed() is None
        turned = []
        for parameter in module.parameters():
            was = before.get(id(parameter), parameter.requires_grad)
            if was != parameter.requires_grad == known.get(id(parameter)):
                parameter.requires_grad_(was)
                turned.append(parameter)
        self.wrapped = self.wrapped | {id(parameter): parameter.requires_grad for parameter in module.parameters()}
        try:
            yield
        finally:
            for parameter in turned:
                parameter.requires_grad_(not parameter.requires_grad)
            if unchanged and self.changed(written=False) is None:
                self.record(manner=False)  # DDP made by hand broadcasts what is already equal

    # ---- for newcomers ----

    def value(self) -> dict[str, Any]:
        """The settings of all protected modules, in order, for JSON."""
        if self._holders is None:
            return {}
        wrapped = [self._manner.wrapped.get(id(parameter), 2) for parameter in self._holders.parameters]
        return {
            "training": bytes(self._manner.training).hex(),
            "requires_grad": bytes(self._manner.requires_grad).hex(),
            "wrapped": bytes(wrapped).hex(),
            "committed_in": self._committed_in,
            **({"position": self.position} if self.position else {}),
        }

    def load(self, value: dict[str, Any]) -> None:
        """Loads the `value` of a peer or a checkpoint; does nothing if it belongs to other modules."""
        if not value:
            return
        self._committed_in = value.get("committed_in", [0, 0])
        self.position = value.get("position", 0)
        holders = Holders(self._registry)
        training, requires_grad, wrapped = (
            bytes.fromhex(value[key]) for key in ("training", "requires_grad", "wrapped")
        )
        if len(training) != len(holders.modules) or {len(requires_grad), len(wrapped)} != {len(holders.parameters)}:
            return
        manner = Manner([*map(bool, training)], [*map(bool, requires_grad)], {}, [], {})
        holders.put_back(manner, with_groups=False)
        self.wrapped = {
            id(parameter): bool(was) for parameter, was in zip(holders.parameters, wrapped, strict=True) if was != 2
        }


@contextmanager
def restored(registry: Registry) -> Iterator[Callable[[], bool]]:
    """Restores everything protected at the end, bit for bit; needs as much memory as the protected state.

    What it yields says afterwards whether everything was restored.
    """
    back = False
    holders = Holders(registry)
    pieces = Pieces(holders.named)
    manner = holders.take({})
    snapshot = Snapshot(registry)
    try:
        yield lambda: back
    finally:
        point_back(pieces)
        holders.put_back(manner)
        snapshot.restore()
        back = True
